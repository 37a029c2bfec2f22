"""Builds the optional CPU kernels; everything else about the package is in pyproject.toml.

The kernels are one shared library without a Python interface (loaded through ctypes), compiled from several translation
units: each instruction-set level has its own with its own flags, and the library picks one at run time. Without a working
C++ compiler, or with one that lacks a level's flags, the package installs all the same and runs on torch, or without that
level.
"""

from __future__ import annotations

import platform
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("src/mlxcel/runners/kernels/native")
COMMON = ["-std=c++17", "-O3", "-g0", "-fPIC", "-fvisibility=hidden"]
COMMON += ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-Wno-maybe-uninitialized"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"]
LEVEL_FLAGS = {
    "x86": {
        "level_avx2": AVX2,
        "level_avx_vnni": [*AVX2, "-mavxvnni"],
        "level_avx512": AVX512,
        "level_amx": [*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"],
    },
    "arm": {"level_neon": ["-march=armv8.2-a+dotprod+fp16"]},
    "other": {},
}


def processor_family() -> str:
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        return "x86"
    return "arm" if machine in ("arm64", "aarch64") else "other"


class BuildKernels(build_ext):
    """Compiles each source with the flags of its level; a level the compiler does not know is built empty."""

    def get_ext_filename(self, fullname: str) -> str:
        # No Python ABI in the name: the library has none.
        return str(Path(*fullname.split("."))) + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []

    def build_extension(self, ext: Extension) -> None:
        if sys.platform == "win32":
            raise OSError("the kernels are not built on Windows")
        objects = []
        for source in ext.sources:
            flags = LEVEL_FLAGS[processor_family()].get(Path(source).stem, [])
            if not self._accepts(flags):
                flags = []
            objects += self.compiler.compile(
                [source], output_dir=self.build_temp, extra_postargs=[*COMMON, *flags], depends=ext.depends
            )
        target = self.get_ext_fullpath(ext.name)
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(objects, target, target_lang="c++", extra_postargs=["-pthread"])

    def _accepts(self, flags: list[str]) -> bool:
        if not flags:
            return True
        with tempfile.TemporaryDirectory() as folder:
            probe = Path(folder, "probe.cpp")
            probe.write_text("int probe() { return 0; }\n", encoding="ascii")
            try:
                self.compiler.compile([str(probe)], output_dir=folder, extra_postargs=flags)
            except Exception:  # whatever the compiler class raises, the flags are unusable
                return False
        return True


setup(
    ext_modules=[
        Extension(
            "mlxcel.runners.kernels._native",
            sources=sorted(path.as_posix() for path in NATIVE.glob("*.cpp")),
            depends=sorted(path.as_posix() for path in NATIVE.glob("*.h")),
            language="c++",
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernels},
)
