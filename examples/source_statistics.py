"""Count the lines of a library with Dask: it reads the source files and answers questions, with minray as its scheduler.

    python examples/source_statistics.py --limit 500

The input is the standard library of the running Python. A Dask bag reads it and makes one row of each file. The rows become
a dataframe, which is persisted: its partitions stay in the object store, and every question is computed on them without
reading a file again. The lengths of all lines become a Dask array whose chunk sizes are unknown beforehand. At the end
pandas answers the same questions in this process, and the answers have to agree.
"""

import argparse
import sysconfig
from pathlib import Path

import numpy as np

import minray as ray

try:
    import dask
    import dask.array as da
    import dask.bag as db
    import pandas as pd

    from minray.util.dask import ProgressBarCallback, enable_dask_on_minray, wait
except ModuleNotFoundError as error:
    raise SystemExit(f'this example needs {error.name}: pip install "minray[dask]"') from None

LIBRARY = Path(sysconfig.get_path("stdlib"))
COLUMNS = {"package": "object", "file": "object", "lines": "int64", "code": "int64", "comments": "int64"}
WIDTHS = [0, 20, 40, 60, 80, 100, 1_000_000]


def python_files(limit: int | None) -> list[str]:
    """Return the library's files, relative to it, without installed packages."""
    found = (path.relative_to(LIBRARY) for path in sorted(LIBRARY.rglob("*.py")))
    return [str(path) for path in found if "site-packages" not in path.parts][:limit]


def lines_of(file: str) -> list[str]:
    return (LIBRARY / file).read_text(errors="replace").splitlines()


def row_of(file: str) -> dict[str, object]:
    """Return a row of the dataframe: package, name and numbers of lines of one file."""
    stripped = [line.strip() for line in lines_of(file)]
    comments = sum(line.startswith("#") for line in stripped)
    code = sum(bool(line) for line in stripped) - comments
    package = file.partition("/")[0] if "/" in file else "(top)"
    return {"package": package, "file": file, "lines": len(stripped), "code": code, "comments": comments}


def widths_of(files: list[str]) -> np.ndarray:
    return np.array([len(line) for file in files for line in lines_of(file)])


def largest_packages(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the sums of lines by package; works on a dataframe of Dask or of pandas."""
    return rows.groupby("package")[["lines", "code", "comments"]].sum()


def histogram(files: list[str], partitions: int) -> da.Array:
    """Return the number of lines in each range of WIDTHS."""
    groups = [files[start::partitions] for start in range(partitions)]
    chunks = [da.from_delayed(dask.delayed(widths_of)(group), (np.nan,), dtype=int) for group in groups]
    return da.histogram(da.concatenate(chunks, allow_unknown_chunksizes=True), bins=WIDTHS)[0]


def main(limit: int | None = None, partitions: int = 8) -> dict[str, object]:
    files = python_files(limit)
    with ray.init(), enable_dask_on_minray(), dask.config.set({"dataframe.convert-string": False}), ProgressBarCallback():
        rows = db.from_sequence(files, npartitions=partitions).map(row_of).to_dataframe(meta=COLUMNS).persist()
        wait(rows)
        packages, widest, lines = dask.compute(
            largest_packages(rows), rows.nlargest(3, "lines")[["file", "lines"]], rows.lines.sum()
        )
        widths = histogram(files, partitions).compute()
        by_size = rows.set_index("code").file.compute()
    expected = pd.DataFrame([row_of(file) for file in files])
    return {
        "files": len(by_size),
        "lines": int(lines),
        "longest": list(widest.itertuples(index=False, name=None)),
        "packages": packages.sort_values("lines", ascending=False),
        "widths": dict(zip(WIDTHS, map(int, widths), strict=False)),
        "pandas agrees": packages.sort_index().equals(largest_packages(expected).sort_index())
        and int(widths.sum()) == expected.lines.sum() == lines
        and list(by_size.index) == sorted(expected.code),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--limit", type=int, help="number of files to read (default: all)")
    parser.add_argument("--partitions", type=int, default=8)
    options = parser.parse_args()
    told = main(options.limit, options.partitions)
    print(f"{told['files']:,} files, {told['lines']:,} lines; the longest: {told['longest']}")
    print(told["packages"].head(8))
    for width, count in told["widths"].items():
        print(f"from {width:3} characters: {count:8,} lines")
    print("pandas agrees" if told["pandas agrees"] else "pandas has another result")
