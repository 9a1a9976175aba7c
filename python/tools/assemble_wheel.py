"""Makes a wheel around a library that cargo has built: ``assemble_wheel.py LIBRARY FOLDER``.

For the project's own tests, which build everything once. ``maturin build``, which makes the wheels that people get, chooses the features of
one package alone, and would compile every crate again.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

SOURCES = Path(__file__).parents[1]
PACKAGE = "phalanx"
MODULE = "_phalanx.abi3.so"


def files(library: Path, described: Path) -> dict[str, Path]:
    """Every file of the wheel by its name there: the package, the library, and what maturin says of them."""
    package = {
        str(path.relative_to(SOURCES)): path
        for path in sorted((SOURCES / PACKAGE).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }
    metadata = {str(path.relative_to(described)): path for path in sorted(described.rglob("*")) if path.is_file()}
    return {**package, f"{PACKAGE}/{MODULE}": library, **metadata}


def record(contents: dict[str, bytes], name: str) -> str:
    """The list of files that every wheel carries."""
    digests = {
        file: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        for file, data in contents.items()
    }
    lines = [f"{file},sha256={digests[file]},{len(data)}" for file, data in contents.items()]
    return "\n".join([*lines, f"{name},,", ""])


def main(library: Path, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as described:
        command = ["maturin", "pep517", "write-dist-info", "--metadata-directory", described]
        subprocess.run([sys.executable, "-m", *command], cwd=SOURCES.parent, check=True, timeout=300)
        (info,) = Path(described).glob("*.dist-info")
        contents = {name: path.read_bytes() for name, path in files(library, Path(described)).items()}
    wheel = contents[f"{info.name}/WHEEL"].decode()
    tag = next(line.split()[1] for line in wheel.splitlines() if line.startswith("Tag:"))
    listing = f"{info.name}/RECORD"
    contents[listing] = record(contents, listing).encode()
    folder.mkdir(parents=True, exist_ok=True)
    # Stored, not compressed: it is unpacked at once.
    with zipfile.ZipFile(folder / f"{info.name.removesuffix('.dist-info')}-{tag}.whl", "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
