"""The API as pages: a page for each file of ``proto/progressor/v1``, from its comments."""

import posixpath
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf import descriptor_pb2 as pb

ROOT = Path(__file__).parents[3]
FOLDER = "reference/api"

_PACKAGE = ".progressor.v1."
_Field = pb.FieldDescriptorProto
_SCALARS = {
    number: name.removeprefix("TYPE_").lower() for name, number in _Field.Type.items()
}  # fmt: skip
# Numbers of the fields of FileDescriptorProto and DescriptorProto, of which paths are made.
_MESSAGE, _ENUM, _SERVICE = 4, 5, 6
_MEMBER, _NESTED_MESSAGE, _NESTED_ENUM, _SYNTAX = 2, 3, 4, 12

Path_ = tuple[int, ...]


def pages() -> dict[str, str]:
    files = _parsed()
    home = {name: file for file in files for name in _names(file)}
    return {f"{FOLDER}/{_place(file)}": _Page(file, home).text() for file in files}


def _parsed() -> list[pb.FileDescriptorProto]:
    buf = Path(sys.executable).with_name("buf")
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "image.binpb"
        subprocess.run(
            [buf, "build", "proto", "--as-file-descriptor-set", "-o", image],
            cwd=ROOT,
            env={"BUF_CACHE_DIR": folder, "HOME": folder},
            check=True,
        )
        found = pb.FileDescriptorSet.FromString(image.read_bytes()).file
    return [file for file in found if file.package == "progressor.v1"]


def _names(file: pb.FileDescriptorProto) -> Iterator[str]:
    for message in file.message_type:
        yield message.name
        yield from (f"{message.name}.{each.name}" for each in message.nested_type)
        yield from (f"{message.name}.{each.name}" for each in message.enum_type)
    yield from (enum.name for enum in file.enum_type)


def _stem(file: pb.FileDescriptorProto) -> str:
    return Path(file.name).stem


def _place(file: pb.FileDescriptorProto) -> str:
    page = f"{_stem(file)}.md"
    return page if file.service else f"values/{page}"


class _Page:
    def __init__(
        self, file: pb.FileDescriptorProto, home: dict[str, pb.FileDescriptorProto]
    ) -> None:
        self._file = file
        self._home = home
        self._comments = {
            tuple(each.path): each.leading_comments for each in file.source_code_info.location
        }

    def text(self) -> str:
        services = list(self._file.service)
        title = services[0].name if services else _stem(self._file).capitalize()
        parts = [
            f"# {title}",
            f"<!-- written from proto/{self._file.name} by `python -m tests.unit.test_readme` -->",
            self._comment(_SYNTAX),
        ]
        for number, service in enumerate(services):
            parts += self._service(service, (_SERVICE, number))
        messages = [each for each in self._messages() if not each[1].options.map_entry]
        if messages:
            parts.append("## Messages")
        for name, message, path in messages:
            parts += self._message(name, message, path)
        enums = list(self._enums())
        if enums:
            parts.append("## Enums")
        for name, enum, path in enums:
            parts += self._enum(name, enum, path)
        return "\n\n".join(part for part in parts if part) + "\n"

    def _service(self, service: pb.ServiceDescriptorProto, path: Path_) -> Iterator[str]:
        yield self._comment(*path)
        yield "## Methods"
        for number, method in enumerate(service.method):
            asked = self._stream(method.input_type, streams=method.client_streaming)
            answered = self._stream(method.output_type, streams=method.server_streaming)
            yield f"### {method.name}"
            yield f"{asked} → {answered}"
            yield self._comment(*path, _MEMBER, number)

    def _messages(self) -> Iterator[tuple[str, pb.DescriptorProto, Path_]]:
        for number, message in enumerate(self._file.message_type):
            yield message.name, message, (_MESSAGE, number)
            for inner, nested in enumerate(message.nested_type):
                path = (_MESSAGE, number, _NESTED_MESSAGE, inner)
                yield f"{message.name}.{nested.name}", nested, path

    def _enums(self) -> Iterator[tuple[str, pb.EnumDescriptorProto, Path_]]:
        for number, enum in enumerate(self._file.enum_type):
            yield enum.name, enum, (_ENUM, number)
        for number, message in enumerate(self._file.message_type):
            for inner, enum in enumerate(message.enum_type):
                yield f"{message.name}.{enum.name}", enum, (_MESSAGE, number, _NESTED_ENUM, inner)

    def _message(self, name: str, message: pb.DescriptorProto, path: Path_) -> Iterator[str]:
        yield f"### {name}"
        yield self._comment(*path)
        rows = [
            (
                f"`{field.name}`",
                self._type(field, message),
                str(field.number),
                self._one_of(field, message) + self._cell(*path, _MEMBER, number),
            )
            for number, field in enumerate(message.field)
        ]
        yield table(("field", "type", "number", "meaning"), rows) if rows else "It has no fields."

    def _enum(self, name: str, enum: pb.EnumDescriptorProto, path: Path_) -> Iterator[str]:
        yield f"### {name}"
        yield self._comment(*path)
        rows = [
            (f"`{value.name}`", str(value.number), self._cell(*path, _MEMBER, number))
            for number, value in enumerate(enum.value)
        ]
        yield table(("value", "number", "meaning"), rows)

    def _type(self, field: _Field, message: pb.DescriptorProto) -> str:
        entry = next(
            (each for each in message.nested_type if field.type_name.endswith(each.name)), None
        )
        if entry is not None and entry.options.map_entry:
            key, value = entry.field
            return f"map of {self._type(key, entry)} to {self._type(value, entry)}"
        named = self._link(field.type_name) if field.type_name else _SCALARS[field.type]
        if field.label == _Field.LABEL_REPEATED:
            return f"repeated {named}"
        return f"optional {named}" if field.proto3_optional else named

    def _one_of(self, field: _Field, message: pb.DescriptorProto) -> str:
        if not field.HasField("oneof_index") or field.proto3_optional:
            return ""
        return f"One of `{message.oneof_decl[field.oneof_index].name}`. "

    def _stream(self, name: str, *, streams: bool) -> str:
        return f"{'stream of ' if streams else ''}{self._link(name)}"

    def _link(self, name: str) -> str:
        if not name.startswith(_PACKAGE):
            return f"`{name.removeprefix('.')}`"
        name = name.removeprefix(_PACKAGE)
        file = self._home[name]
        folder = posixpath.dirname(_place(self._file)) or "."
        page = "" if file is self._file else posixpath.relpath(_place(file), folder)
        return f"[{name}]({page}#{name.replace('.', '').lower()})"

    def _comment(self, *path: int) -> str:
        return prose(self._comments.get(path, ""))

    def _cell(self, *path: int) -> str:
        return " ".join(self._comments.get(path, "").split())


def prose(comment: str) -> str:
    return fenced("\n".join(line.removeprefix(" ") for line in comment.strip("\n").splitlines()))


def fenced(text: str) -> str:
    """Return a text in which what was indented by two spaces is a block."""
    lines: list[str] = []
    is_block = False
    for line in text.splitlines():
        if line and line.startswith("  ") != is_block:
            is_block = not is_block
            lines.append("```text" if is_block else "```")
        lines.append(line.removeprefix("  ").rstrip())
    if is_block:
        lines.append("```")
    return "\n".join(lines).replace("\n\n```\n", "\n```\n\n")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(
        f"| {' | '.join(each.replace('|', '&#124;') for each in line)} |" for line in lines
    )
