CREATE TABLE runs (
  number INTEGER PRIMARY KEY,  -- the order in which runs were first added
  id TEXT NOT NULL UNIQUE
);
CREATE TABLE results (
  run INTEGER NOT NULL REFERENCES runs,
  key TEXT NOT NULL,
  failure TEXT NOT NULL,
  "case" TEXT NOT NULL,
  cell TEXT NOT NULL,
  level TEXT NOT NULL,
  expectation TEXT NOT NULL,
  verdict TEXT NOT NULL,
  outcome TEXT NOT NULL,
  signature TEXT,
  other TEXT,
  seconds REAL NOT NULL,
  started TEXT NOT NULL,
  content TEXT NOT NULL,
  cached_from TEXT NOT NULL,
  record BLOB NOT NULL,  -- the Record as JSON, zlib-compressed
  PRIMARY KEY (run, key)
);
CREATE INDEX results_key ON results (key, run, verdict);
CREATE INDEX results_content ON results (content, run);
