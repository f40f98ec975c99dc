"""Migrations that databases may have applied never change; priv/README.md tells of each table."""

import hashlib
import re

import pytest

from progressor.storage.postgres import statements

PRIV = statements.priv()
MIGRATIONS = PRIV / "migrations"

# An engine refuses a database whose migrations it has with another text. Add the line of a new
# file; never change one.
CHECKSUMS = {
    "0001_pre_initial.sql": "aecd923499b081da",
    "0002_pre_flat_cost.sql": "af56deded7cb049c",
    "0003_pre_hot_processes.sql": "09aadea100d72c56",
    "0004_pre_replica_load.sql": "e8fdd32329a15cb7",
    "0005_pre_replica_facts.sql": "fe4268da26f6fc8e",
    "0006_pre_retries.sql": "2e4c88b456c2720a",
    "0007_pre_reply_keys.sql": "24769e49cef9d0b3",
    "0008_pre_available.sql": "063cb44394a92945",
    "0009_pre_gates.sql": "50fc13c27d11438e",
    "0010_pre_join.sql": "d8334678b0bee508",
    "0011_pre_jobs.sql": "583655aee05d0338",
    "0012_pre_schedules.sql": "93a8db3d87caf70d",
    "0013_pre_lost_jobs.sql": "1a72dd16e4a62687",
    "0014_pre_lowered_gates.sql": "06f58243a678ef02",
    "0015_pre_keys_of_the_removed.sql": "4be6f02f58bcacbe",
    "0016_pre_who_ran_it.sql": "8ad8e9e3a430619d",
    "0017_pre_orders_end.sql": "d71d5a4f42f3212c",
    "0018_pre_schedule_runs.sql": "f1db5ce8e8fd43bc",
    "0019_pre_words.sql": "af2b37543f45d093",
    "0020_pre_held_tasks.sql": "8f0675ae1b3abfd8",
    "0021_pre_state_versions.sql": "56a0fb6e368fe211",
    "0022_pre_process_ends.sql": "e74118d7e04d68ed",
    "0023_pre_messages.sql": "b269feeabf254444",
    "0024_pre_named_timers.sql": "3fdb01aa4118d1b7",
    "0025_pre_memos.sql": "e1b46c6daf2b5304",
    "0026_pre_reply.sql": "a19bb4c3bcb37b51",
    "0027_pre_reply_requests.sql": "44e46b0f3aa94276",
    "0028_pre_due_requests.sql": "777142c3c85fdf81",
    "0029_pre_awaited_replies.sql": "923819f67400eab9",
    "0030_pre_broken_at.sql": "0cf5da80bb197c73",
    "0031_pre_broken_processes.sql": "e68203a0a6421bbc",
    "0032_pre_pauses.sql": "83e22b1fb458055f",
    "0033_pre_process_counts.sql": "6d81e2e4f21df213",
    "0034_pre_bulk_operations.sql": "a5bc0a71bb4dac63",
    "0035_pre_failures.sql": "bc3611480aecebb9",
    "0036_pre_senders.sql": "d1a6ce3e71afd396",
    "0037_pre_tried_for.sql": "e9f9e9b08cf3c2a1",
    "0038_pre_bulk_follow.sql": "007eb624882ae0ba",
    "0039_pre_fewer_checks.sql": "04638695415884e7",
    "0040_pre_due_schedules.sql": "07b54ec91fb7d010",
    "0041_pre_shrink_counts.sql": "f10aac79c04a6257",
    "0042_pre_bulk_snapshots.sql": "06ad2944cfae2d21",
    "0043_pre_bulk_breakings.sql": "e02b962a61966247",
    "0044_pre_access.sql": "177c135801c6c99e",
    "0045_pre_audit.sql": "a2210b47cbbe9685",
    "0046_pre_quotas.sql": "8d747643836ec41d",
    "0047_pre_keys.sql": "51e4f609ba405a75",
    "0048_pre_replies_of_processes.sql": "6a7eeef33df824f8",
    "0049_pre_lineage.sql": "197bec7dc30fc74e",
    "0050_pre_retention.sql": "2c91d0d28cfdf1ae",
    "0051_pre_vacuum_thresholds.sql": "8388bb7482e72459",
    "0053_pre_function_schemas.sql": "4c7aaa397a56008c",
    "0054_pre_freeze_processes.sql": "942a6f7e9f699eb4",
    "0055_pre_placed_replies.sql": "41fcce58c5c33954",
    "0056_pre_cells.sql": "ffb2df0fa34048d3",
}


def test_every_migration_has_its_checksum() -> None:
    assert {file.name for file in MIGRATIONS.glob("[0-9]*.sql")} == CHECKSUMS.keys()


@pytest.mark.parametrize("name", CHECKSUMS)
def test_a_migration_is_what_it_was(name: str) -> None:
    text = (MIGRATIONS / name).read_bytes()

    assert hashlib.sha256(text).hexdigest()[:16] == CHECKSUMS[name]


def test_the_readme_lists_each_table_of_the_schema_once() -> None:
    text = (PRIV / "README.md").read_text()
    section = text.partition("\n## Tables\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    schema = (PRIV / "migrations" / "schema.sql").read_text()
    tables = re.findall(r"^CREATE (?:UNLOGGED )?TABLE progressor\.(\w+) ", schema, re.MULTILINE)

    assert tables
    assert sorted(listed) == sorted(tables)
