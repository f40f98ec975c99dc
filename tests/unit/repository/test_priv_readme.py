"""priv/README.md against the schema that it describes."""

import re
from pathlib import Path

PRIV = Path(__file__).parents[3] / "priv"


def test_the_readme_lists_each_table_of_the_schema_once() -> None:
    text = (PRIV / "README.md").read_text()
    section = text.partition("\n## Tables\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    schema = (PRIV / "migrations" / "schema.sql").read_text()
    tables = re.findall(r"^CREATE (?:UNLOGGED )?TABLE progressor\.(\w+) ", schema, re.MULTILINE)

    assert tables
    assert sorted(listed) == sorted(tables)
