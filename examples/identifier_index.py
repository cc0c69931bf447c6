"""An inverted index of every identifier in a folder of Python sources: by default those of the standard library.

    python examples/identifier_index.py                          the standard library
    python examples/identifier_index.py FOLDER --find os.path    another folder, another question

What it shows of the API:
* many small tasks: one per few files, hundreds to thousands in all;
* a tree of tasks: `merge` takes references as arguments, eight at a time, so no partial index visits this process;
* `wait` drives the progress bar; nothing is fetched for it;
* the finished index stays a reference: questions are tasks that go to it, and `find` asks tasks of its own;
* bad input is data: a file that is no readable Python is skipped, counted and named, never fatal.

An index is two plain values: a dict from each identifier to its postings, and the list of skipped files. Postings are
packed pairs (file number, uses) of 32-bit integers, in the order of the files, so that a partial index pickles at C
speed and merging is joining bytes. Plain dicts rather than a class of our own: a class defined in a script travels by
value with every result. The run is checked against one process that reads all files in a single call of
`index_files`, without any merging.
"""

import argparse
import hashlib
import importlib
import keyword
import os
import sys
import sysconfig
import time
import tokenize
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import minray as ray

MERGE_ARITY = 8
NAMES_SHOWN = 10
FILES_SHOWN = 5
BAD_SOURCE = (OSError, SyntaxError, ValueError, LookupError, tokenize.TokenError)

Skipped = list[tuple[str, str]]  # (file, reason)
Index = tuple[dict[str, bytes], Skipped]
Uses = list[tuple[int, int]]  # (file number, uses)


class Report(NamedTuple):
    """What a run found out; `main` returns it."""

    files: int
    skipped: Skipped
    identifiers: int
    uses: int
    digest: str
    tasks: int
    seconds: float
    requests_per_task: float
    frames_per_task: float
    widest: list[tuple[str, int]]  # the identifiers used in most files, with the number of files
    found: dict[str, list[tuple[str, int]]]  # for each name asked for: (file, uses), most uses first


# -- Reading files: ordinary functions, which run in tasks and in the single-process check alike --


def python_files(folder: str, *, with_packages: bool) -> list[str]:
    """Every `.py` file below the folder, relative to it, in order; `with_packages` includes installed packages."""
    found = []
    for directory, subdirectories, names in os.walk(folder):
        if not with_packages:
            subdirectories[:] = [name for name in subdirectories if name not in ("site-packages", "dist-packages")]
        found += [os.path.relpath(os.path.join(directory, name), folder) for name in names if name.endswith(".py")]
    return sorted(found)


def words(path: str) -> list[str]:
    """The names and operators of a source file, in order; raises one of BAD_SOURCE if it is no readable Python."""
    if not os.path.isfile(path):
        raise OSError("not a regular file")  # a pipe would block for ever, a link may lead nowhere
    with tokenize.open(path) as source:
        tokens = tokenize.generate_tokens(source.readline)
        return [token[1] for token in tokens if token[0] == tokenize.NAME or token[0] == tokenize.OP]


def normalised(name: str) -> str:
    """The form under which Python itself knows an identifier."""
    return name if name.isascii() else unicodedata.normalize("NFKC", name)


def index_files(folder: str, first_number: int, files: Iterable[str]) -> Index:
    """The index of some files, which are numbered from `first_number`."""
    postings: dict[str, array[int]] = {}
    skipped = []
    for number, file in enumerate(files, first_number):
        try:
            counts = Counter(words(os.path.join(folder, file)))
        except BAD_SOURCE as error:
            skipped.append((file, f"{type(error).__name__}: {error}"))
            continue
        identifiers: Counter[str] = Counter()
        for word, uses in counts.items():
            if word.isidentifier() and not keyword.iskeyword(word):
                identifiers[normalised(word)] += uses
        for identifier, uses in identifiers.items():
            postings.setdefault(identifier, array("I")).extend((number, uses))
    return {identifier: pairs.tobytes() for identifier, pairs in postings.items()}, skipped


def merge(*parts: Index) -> Index:
    """One index of several, which follow one another in the order of files."""
    gathered: dict[str, list[bytes]] = {}
    skipped: Skipped = []
    for postings, part_skipped in parts:
        for identifier, pairs in postings.items():
            gathered.setdefault(identifier, []).append(pairs)
        skipped += part_skipped
    return {identifier: b"".join(pieces) for identifier, pieces in gathered.items()}, skipped


# -- Questions to a finished index --


def unpacked(pairs: bytes) -> Uses:
    numbers = array("I", pairs)
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def summarise(index: Index) -> tuple[int, int, str, Skipped]:
    """Number of identifiers, number of uses, a digest of all postings, and what was skipped."""
    postings, skipped = index
    digest = hashlib.sha256()
    for identifier in sorted(postings):
        digest.update(identifier.encode("utf-8", "surrogatepass") + b"\0" + postings[identifier])
    uses = sum(sum(array("I", pairs)[1::2]) for pairs in postings.values())
    return len(postings), uses, digest.hexdigest(), skipped


def most_widely_used(index: Index, limit: int) -> list[tuple[str, int]]:
    """The identifiers that occur in most files, with the number of files."""
    pair_bytes = 2 * array("I").itemsize
    files = {identifier: len(pairs) // pair_bytes for identifier, pairs in index[0].items()}
    return sorted(files.items(), key=lambda item: (-item[1], item[0]))[:limit]


def count_dotted(path: str, parts: list[str]) -> int:
    """How often a dotted name is written in one file."""
    wanted = [word for part in parts for word in (".", part)][1:]
    written = [normalised(word) for word in words(path)]
    starts = range(len(written) - len(wanted) + 1)
    return sum(written[start] == parts[0] and written[start : start + len(wanted)] == wanted for start in starts)


def find(index: Index, folder: str, files: list[str], name: str) -> list[tuple[str, int]]:
    """Where a name is used. The index answers for one identifier; for a dotted name it gives the files that have
    every part, and one task for each of them reads it again."""
    parts = [normalised(part) for part in name.split(".")]
    postings = [dict(unpacked(index[0].get(part, b""))) for part in parts]
    numbers = set(postings[0]).intersection(*postings[1:])
    uses = {files[number]: postings[0][number] for number in sorted(numbers)}
    if len(parts) > 1:
        count = ray.remote(count_dotted)
        uses = dict(zip(uses, ray.get([count.remote(os.path.join(folder, file), parts) for file in uses]), strict=True))
    return sorted(((file, count) for file, count in uses.items() if count), key=lambda item: (-item[1], item[0]))


# -- Running it --


def submit(folder: str, files: list[str], files_per_task: int) -> list[Any]:
    """Submits all tasks of the index, groups of files first; the last reference is the finished index."""
    index_group, merge_parts = ray.remote(index_files), ray.remote(merge)
    starts = range(0, len(files), files_per_task)
    level = [index_group.remote(folder, start, files[start : start + files_per_task]) for start in starts]
    references = level
    while len(level) > 1:
        starts = range(0, len(level), MERGE_ARITY)
        level = [merge_parts.remote(*level[start : start + MERGE_ARITY]) for start in starts]
        references = references + level
    return references


def completed(references: list[Any]) -> Iterator[Any]:
    """Yields each reference once its task is done; at most 32 or a tenth of a second at a time."""
    pending = references
    while pending:
        ready, pending = ray.wait(pending, num_returns=min(32, len(pending)), timeout=0.1, fetch_local=False)
        yield from ready


def progress(items: Iterable[Any], total: int, title: str) -> Iterator[Any]:
    """Passes the items on and shows on stderr how many have passed: with tqdm where it is installed, else plainly."""
    try:
        tqdm = importlib.import_module("tqdm").tqdm
    except ImportError:
        return plain_progress(items, total, title)
    return iter(tqdm(items, total=total, desc=title, unit=" items", file=sys.stderr))


def plain_progress(items: Iterable[Any], total: int, title: str) -> Iterator[Any]:
    for done, item in enumerate(items, 1):
        yield item
        if done * 100 // total > (done - 1) * 100 // total and (sys.stderr.isatty() or done == total):
            print(f"\r{title}: {done:,}/{total:,}", end="\n" if done == total else "", file=sys.stderr, flush=True)


def printable(path: str) -> str:
    """A path as text: a file name may be bytes that are no text at all."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def build(folder: str, files: list[str], options: argparse.Namespace) -> Report:
    """Builds the index on the running cluster, asks it, and prints what came of it."""
    before = ray.get_runtime_context().rpc_counters()
    started = time.perf_counter()
    references = submit(folder, files, options.files_per_task)
    for _ in progress(completed(references), len(references), "tasks"):
        pass
    seconds = time.perf_counter() - started
    after = ray.get_runtime_context().rpc_counters()
    tasks, index = len(references), references[-1]
    submitted = after["tasks"] - before["tasks"]
    requests = (after["requests"] - before["requests"]) / submitted
    frames = (after["frames"] - before["frames"]) / submitted

    searches = {name: ray.remote(find).remote(index, folder, files, name) for name in options.find}
    widest = ray.get(ray.remote(most_widely_used).remote(index, NAMES_SHOWN))
    identifiers, uses, digest, skipped = ray.get(ray.remote(summarise).remote(index))
    found = {name: ray.get(reference) for name, reference in searches.items()}

    print(f"{len(files):,} files, {identifiers:,} identifiers, {uses:,} uses; {len(skipped):,} files skipped")
    for file, reason in skipped[:FILES_SHOWN]:
        print(f"    skipped {printable(file)}: {printable(reason)}")
    if len(skipped) > FILES_SHOWN:
        print(f"    ... and {len(skipped) - FILES_SHOWN:,} more")
    print(f"{tasks:,} tasks in {seconds:.2f} s: {tasks / seconds:,.0f} tasks per second, ", end="")
    print(f"{requests:.2f} requests and {frames:.2f} frames per task")
    print("most widely used:", ", ".join(f"{name} ({count:,} files)" for name, count in widest))
    for name, places in found.items():
        print(f"{name}: {sum(count for _, count in places):,} uses in {len(places):,} files")
        for file, count in places[:FILES_SHOWN]:
            print(f"    {printable(file)}: {count:,}")
    return Report(len(files), skipped, identifiers, uses, digest, tasks, seconds, requests, frames, widest, found)


def check(report: Report, folder: str, files: list[str]) -> None:
    """Indexes everything again in this process alone, and leaves with exit code 1 unless the results are equal."""
    started = time.perf_counter()
    index = index_files(folder, 0, progress(files, len(files), "single-process check"))
    identifiers, uses, digest, skipped = summarise(index)
    seconds = time.perf_counter() - started
    if (identifiers, uses, digest, skipped) != (report.identifiers, report.uses, report.digest, report.skipped):
        sys.exit(f"the index differs from a single-process run: digest {report.digest}, expected {digest}")
    print(f"a single process gives the same index (sha256 {digest[:16]}...) in {seconds:.2f} s: ", end="")
    print(f"the tasks were {seconds / report.seconds:.2f} times as fast")


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def main(arguments: Sequence[str] | None = None) -> Report:
    parser = argparse.ArgumentParser(description="An inverted index of every identifier in a folder of Python sources.")
    parser.add_argument("folder", nargs="?", help="a folder of Python sources (default: the standard library)")
    parser.add_argument("--find", metavar="NAME", action="append", help="a name to look up, perhaps dotted; repeatable")
    parser.add_argument("--files-per-task", type=positive, default=2, metavar="N", help="default: %(default)s")
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N files")
    parser.add_argument("--num-cpus", type=positive, metavar="N", help="default: as many as this machine has")
    parser.add_argument("--no-check", dest="check", action="store_false", help="skip the single-process run")
    options = parser.parse_args(arguments)
    options.find = options.find or ["Queue", "asyncio.Queue"]
    folder = os.path.abspath(sysconfig.get_path("stdlib") if options.folder is None else options.folder)
    if not os.path.isdir(folder):
        parser.error(f"{printable(folder)} is not a folder")
    files = python_files(folder, with_packages=options.folder is not None)[: options.limit]
    if not files:
        parser.error(f"no readable .py files in {printable(folder)}")
    for name in options.find:
        if not all(part.isidentifier() for part in name.split(".")):
            parser.error(f"{name!r} is not a name")

    print(f"indexing {len(files):,} files of {printable(folder)}", flush=True)
    with ray.init(num_cpus=options.num_cpus):
        report = build(folder, files, options)
    if options.check:
        check(report, folder, files)
    return report


if __name__ == "__main__":
    main()
