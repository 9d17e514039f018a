-- a scorecard asks for the few measurements on a clock among very many counters

CREATE INDEX measurements_on_a_clock ON measurements (attempt)
WHERE meter IN ('roofline', 'baseline');

CREATE INDEX attempts_by_status ON attempts (impl, status, kata);
