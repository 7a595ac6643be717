"""A store of objects as an fsspec file system: objects appear whole, are never appended to, and outlive processes.

``objects:///folder/name`` lies in a folder of this host. `Objects.left` is how many changes it still takes.
"""

import secrets
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem


class Objects(LocalFileSystem):
    protocol = "objects"
    left: int | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(auto_mkdir=True, **options)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix("objects://").rstrip("/") or "/"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self._change()
        path = self._strip_protocol(path)
        self.makedirs(str(Path(path).parent), exist_ok=True)
        made = Path(path).with_name(f".{secrets.token_hex(4)}.put")
        made.write_bytes(value)
        made.replace(path)

    def rm_file(self, path: str) -> None:
        self._change()
        super().rm_file(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        for one in [path] if isinstance(path, str) else path:
            for name in self.find(one) if recursive else [one]:
                self.rm_file(name)
            if recursive and self.isdir(one):
                super().rm(one, recursive=True)

    @classmethod
    def _change(cls) -> None:
        if cls.left is not None:
            cls.left -= 1
            if cls.left < 0:
                raise ConnectionError("the store is gone")

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes())

    def find(self, path: str, *args: Any, **options: Any) -> Any:
        return [name for name in super().find(path, *args, **options) if not name.endswith(".put")]

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        """As such stores do it, in two steps."""
        self.pipe_file(path2, self.cat_file(path1))
        self.rm_file(path1)


fsspec.register_implementation("objects", Objects, clobber=True)
