"""Build the distributions of a release, with absolute links to a public repository: docs/releasing.md.

    python scripts/release.py https://HOST/OWNER/NAME [--out dist]

In the repository the README's links are relative, as people read it there. The package index shows the README alone, so
each link becomes one to the file at this version's tag. Both distributions are built from what git tracks.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(!?\[[^\]]*\]\()(?!https?:|#)([^)\s]+)\)")


def absolute(readme: str, url: str, tag: str) -> str:
    """The README with absolute links; pictures point to the file itself, all else to the page that shows it.

    >>> absolute("[a](docs/a.md) ![b](b.svg) [c](https://c.org)", "https://h/o/n", "v1")
    '[a](https://h/o/n/blob/v1/docs/a.md) ![b](https://h/o/n/raw/v1/b.svg) [c](https://c.org)'
    """

    def link(found: re.Match[str]) -> str:
        kind = "raw" if found[1].startswith("!") else "blob"
        return f"{found[1]}{url}/{kind}/{tag}/{found[2]})"

    return LINK.sub(link, readme)


def with_urls(pyproject: str, url: str, tag: str) -> str:
    """pyproject.toml with the project's URLs."""
    urls = {
        "Homepage": url, "Documentation": f"{url}/blob/{tag}/docs/README.md", "Issues": f"{url}/issues",
        "Changelog": f"{url}/blob/{tag}/CHANGELOG.md",
    }  # fmt: skip
    table = "\n".join(["[project.urls]", *(f'{name} = "{value}"' for name, value in urls.items())])
    if "[project.urls]" in pyproject:
        raise SystemExit("pyproject.toml has project URLs already")
    return pyproject.replace("[project.scripts]", f"{table}\n\n[project.scripts]", 1)


def main() -> None:
    """Build from a copy of what git tracks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="address of the public repository")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder to write into (default dist)")
    arguments = parser.parse_args()
    url = arguments.url.rstrip("/")
    if not re.fullmatch(r"https://[^/\s]+/\S+", url):
        parser.error(f"expected an address such as https://HOST/OWNER/NAME, found {arguments.url}")
    version = re.search(r'__version__ = "(.+)"', (ROOT / "bnn_vnnlib" / "__init__.py").read_text(encoding="utf-8"))
    tag = f"v{version[1]}" if version else parser.error("no version in bnn_vnnlib/__init__.py")
    tracked = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout  # noqa: S607
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        with tarfile.open(fileobj=io.BytesIO(tracked)) as archive:
            archive.extractall(copy, filter="data")
        for name, change in (("README.md", absolute), ("pyproject.toml", with_urls)):
            text = (copy / name).read_text(encoding="utf-8")
            (copy / name).write_text(change(text, url, tag), encoding="utf-8")
        command = [sys.executable, "-m", "build", "--outdir", str(arguments.out.resolve()), str(copy)]
        subprocess.run(command, check=True)  # noqa: S603


if __name__ == "__main__":
    main()
