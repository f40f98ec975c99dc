"""Files of certificates: read as a whole, and read again when they change."""

import dataclasses
import logging
from pathlib import Path

import pytest

from progressor.example.certificates import replace
from progressor.wire.tls import Reloaded, TlsFileError, TlsFiles, TlsMaterial
from tests.support.certificates import Pki


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


@dataclasses.dataclass(slots=True)
class Watched:
    """Files that are in use, and what was counted of their reloads."""

    files: TlsFiles
    reloaded: Reloaded[TlsMaterial]
    counted: list[str]


@pytest.fixture
def watched(pki: Pki) -> Watched:
    files, counted = pki.issue("server"), list[str]()
    reloaded = Reloaded(files.paths, files.read, name="server", counted=counted.append)
    reloaded.load()
    return Watched(files, reloaded, counted)


def test_a_renewed_certificate_is_used_at_the_next_look(pki: Pki, watched: Watched) -> None:
    before = watched.reloaded.content
    watched.reloaded.look()
    unchanged = watched.reloaded.content
    pki.issue("server")
    watched.reloaded.look()

    assert unchanged is before
    assert watched.reloaded.content == watched.files.read() != before
    assert watched.counted == ["ok"]


def test_a_swapped_symlink_is_noticed(pki: Pki, tmp_path: Path) -> None:
    # As Kubernetes mounts a Secret: the files are links through a directory that is a link.
    generations = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        issued = pki.issue(name)
        for path, kind in ((issued.certificate, "tls.crt"), (issued.key, "tls.key")):
            assert path is not None
            path.rename(tmp_path / name / kind)
        generations.append(tmp_path / name)
    data = tmp_path / "..data"
    data.symlink_to(generations[0])
    files = TlsFiles(certificate=data / "tls.crt", key=data / "tls.key")
    reloaded = Reloaded(files.paths, files.read, name="server")
    reloaded.load()

    (tmp_path / "fresh").symlink_to(generations[1])
    (tmp_path / "fresh").rename(data)
    reloaded.look()

    assert reloaded.content.certificate == (generations[1] / "tls.crt").read_bytes()


def test_a_half_written_pair_is_not_reported_if_it_is_whole_at_the_next_look(
    pki: Pki, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    issued = pki.issue("next")
    for path, fresh in (
        (watched.files.certificate, issued.certificate),
        (watched.files.key, issued.key),
    ):
        assert path is not None
        assert fresh is not None
        replace(path, fresh.read_bytes())
        watched.reloaded.look()

    assert watched.reloaded.content == dataclasses.replace(issued, ca=pki.ca).read()
    assert watched.counted == ["ok"]
    assert [it for it in caplog.records if it.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("field", ["certificate", "key", "ca"])
@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff\xfe", None])
def test_a_bad_file_keeps_the_last_good_ones_and_is_reported_once(
    watched: Watched, caplog: pytest.LogCaptureFixture, field: str, content: bytes | None
) -> None:
    before, path = watched.reloaded.content, getattr(watched.files, field)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    for _ in range(5):
        watched.reloaded.look()

    [record] = [it for it in caplog.records if it.levelno >= logging.WARNING]
    assert watched.reloaded.content is before
    assert watched.counted == ["failed"]
    assert str(path) in vars(record)["why"]


def test_after_a_bad_file_a_good_one_is_used(pki: Pki, watched: Watched) -> None:
    pki.ca.write_text("garbage")
    for _ in range(2):
        watched.reloaded.look()
    pki.renew()
    pki.issue("server")
    watched.reloaded.look()

    assert watched.reloaded.content == watched.files.read()
    assert watched.counted == ["failed", "ok"]


def test_the_key_of_another_certificate_is_refused(pki: Pki) -> None:
    one, other = pki.issue("one"), pki.issue("other")

    with pytest.raises(
        TlsFileError, match=r"are not a PEM certificate and its key: key values mis"
    ):
        dataclasses.replace(one, key=other.key).read()
