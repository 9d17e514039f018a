-- what the learner's code was judged on, and what came out: written once, never changed

CREATE TABLE attempts (
    id            TEXT    PRIMARY KEY,  -- made at the start; the key under which histories merge
    kata          TEXT    NOT NULL,
    impl          TEXT    NOT NULL,
    code_hash     TEXT    NOT NULL,
    started_at    TEXT    NOT NULL,     -- UTC, ISO 8601 with microseconds: text order is time order
    finished_at   TEXT,
    status        TEXT    NOT NULL CHECK (status IN (
        'running', 'passed', 'failed', 'crashed', 'timed_out', 'aborted', 'error')),
    reason        TEXT    NOT NULL,
    seed          INTEGER NOT NULL,
    device        TEXT    NOT NULL,
    profile       TEXT    NOT NULL,
    versions      TEXT    NOT NULL,     -- JSON object, name to version
    duration_s    REAL    NOT NULL,
    hints_seen    INTEGER NOT NULL,
    solution_seen INTEGER NOT NULL CHECK (solution_seen IN (0, 1)),
    -- who is running it, to tell an attempt under way from one whose process is gone
    host          TEXT    NOT NULL,
    pid           INTEGER NOT NULL,
    process       TEXT    NOT NULL,     -- when that process started: process ids are used again
    CHECK ((status = 'running') = (finished_at IS NULL))
);
CREATE INDEX attempts_by_start ON attempts (started_at);
CREATE INDEX attempts_by_kata ON attempts (kata, started_at);

CREATE TABLE checks (
    attempt  TEXT    NOT NULL REFERENCES attempts (id),
    position INTEGER NOT NULL,
    name     TEXT    NOT NULL,
    outcome  TEXT    NOT NULL CHECK (outcome IN (
        'passed', 'failed', 'skipped', 'ambiguous', 'not_graded')),
    message  TEXT    NOT NULL,
    PRIMARY KEY (attempt, position)
);

CREATE TABLE measurements (
    attempt  TEXT    NOT NULL REFERENCES attempts (id),
    position INTEGER NOT NULL,
    name     TEXT    NOT NULL,
    meter    TEXT    NOT NULL,
    value    REAL,                      -- NULL stands for NaN
    unit     TEXT    NOT NULL,
    "limit"  REAL,
    relation TEXT    NOT NULL CHECK (relation IN ('<=', '>=', '==')),
    passed   INTEGER CHECK (passed IN (0, 1)),
    detail   TEXT    NOT NULL,          -- JSON object
    PRIMARY KEY (attempt, position)
);

-- REPLACE deletes without waking a delete trigger, hence the triggers on insert
CREATE TRIGGER attempts_inserted_once BEFORE INSERT ON attempts
WHEN EXISTS (SELECT 1 FROM attempts WHERE id = NEW.id)
BEGIN SELECT RAISE(ABORT, 'an attempt is recorded once'); END;

CREATE TRIGGER attempts_start_unfinished BEFORE INSERT ON attempts
WHEN NEW.status <> 'running'
BEGIN SELECT RAISE(ABORT, 'an attempt starts running'); END;

CREATE TRIGGER attempts_kept BEFORE DELETE ON attempts
BEGIN SELECT RAISE(ABORT, 'an attempt is never deleted'); END;

CREATE TRIGGER attempts_final BEFORE UPDATE ON attempts
WHEN OLD.status <> 'running' OR NEW.id <> OLD.id
BEGIN SELECT RAISE(ABORT, 'a finished attempt is never changed'); END;

CREATE TRIGGER checks_inserted_while_running BEFORE INSERT ON checks
WHEN (SELECT status FROM attempts WHERE id = NEW.attempt) IS NOT 'running'
BEGIN SELECT RAISE(ABORT, 'a finished attempt gains no checks'); END;

CREATE TRIGGER checks_kept BEFORE DELETE ON checks
BEGIN SELECT RAISE(ABORT, 'a check is never deleted'); END;

CREATE TRIGGER checks_final BEFORE UPDATE ON checks
BEGIN SELECT RAISE(ABORT, 'a check is never changed'); END;

CREATE TRIGGER measurements_inserted_while_running BEFORE INSERT ON measurements
WHEN (SELECT status FROM attempts WHERE id = NEW.attempt) IS NOT 'running'
BEGIN SELECT RAISE(ABORT, 'a finished attempt gains no measurements'); END;

CREATE TRIGGER measurements_kept BEFORE DELETE ON measurements
BEGIN SELECT RAISE(ABORT, 'a measurement is never deleted'); END;

CREATE TRIGGER measurements_final BEFORE UPDATE ON measurements
BEGIN SELECT RAISE(ABORT, 'a measurement is never changed'); END;
