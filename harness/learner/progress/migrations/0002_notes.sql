-- what happened besides attempts: a hint shown, the solution seen, a fresh start

CREATE TABLE notes (
    id     TEXT PRIMARY KEY,            -- made when noted; the key under which histories merge
    at     TEXT NOT NULL,               -- UTC, ISO 8601 with microseconds
    kind   TEXT NOT NULL,
    kata   TEXT NOT NULL,
    detail TEXT NOT NULL
);
CREATE INDEX notes_by_time ON notes (at);
CREATE INDEX notes_by_kata ON notes (kata, kind, at);

CREATE TRIGGER notes_inserted_once BEFORE INSERT ON notes
WHEN EXISTS (SELECT 1 FROM notes WHERE id = NEW.id)
BEGIN SELECT RAISE(ABORT, 'a note is recorded once'); END;

CREATE TRIGGER notes_kept BEFORE DELETE ON notes
BEGIN SELECT RAISE(ABORT, 'a note is never deleted'); END;

CREATE TRIGGER notes_final BEFORE UPDATE ON notes
BEGIN SELECT RAISE(ABORT, 'a note is never changed'); END;
