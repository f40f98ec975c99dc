-- Which cell of an engine this database is: one row, or none for the only database of an engine. Number 0 is the home cell,
-- whose ids are those of a database without cells; each other cell gives out ids of a range of its own (ids_from).
CREATE TABLE progressor.cell (
    name         text COLLATE "C" NOT NULL,
    number       int              NOT NULL CHECK (number BETWEEN 0 AND 64),
    installation uuid             NOT NULL
);
-- In the home cell: all cells by their numbers, and the cell of each namespace. A revision counts the creations of that name.
CREATE TABLE progressor.cells (
    number int              NOT NULL PRIMARY KEY,
    name   text COLLATE "C" NOT NULL UNIQUE
);
CREATE TABLE progressor.cell_namespaces (
    namespace text COLLATE "C" NOT NULL PRIMARY KEY,
    cell      text COLLATE "C" NOT NULL,
    revision  bigint           NOT NULL
);
