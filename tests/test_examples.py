"""Runs every example as a user would, at a small size, and checks what its `main()` returns.

The examples are programs against the public API alone, so these are end-to-end tests on a real cluster. They are
imported from `examples/`, which the workers find through the driver's `sys.path`; two of them also run as scripts, whose
functions live in `__main__` and travel by value.
"""

import importlib
import importlib.util
import pathlib
import random
import subprocess
import sys
from types import ModuleType

import pytest

from tests.helpers import wait_for_condition

ROOT = pathlib.Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"

GOOD = "import asyncio\n\nasync def wait(queue: asyncio.Queue) -> None:\n    await queue.get()  # asyncio.Queue\n"
SOURCES = {
    "a.py": GOOD.encode(),
    "b/latin.py": "# -*- coding: latin-1 -*-\nstraße = self.asyncio\n".encode("latin-1"),
    "b/ligature.py": "ﬁle = file\n".encode(),
    "c/empty.py": b"",
    "c/not_utf8.py": b"x = '\xff'\n",
    "c/unfinished.py": b"x = (1,\n",
    "notes.txt": b"asyncio",
}


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


@pytest.fixture
def sources(tmp_path) -> pathlib.Path:
    for name, content in SOURCES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "c" / "nowhere.py").symlink_to(tmp_path / "missing")
    return tmp_path


@pytest.fixture
def identifier_index(load) -> ModuleType:
    return load("identifier_index")


def run_script(name: str, *arguments: str, without: str | None = None) -> subprocess.CompletedProcess:
    """Run an example as users do, perhaps in a Python that cannot import the library ``without``."""
    forget = f"import runpy, sys; sys.modules[{without!r}] = None; "
    forget += "del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, *(["-c", forget] if without else []), str(EXAMPLES / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("name", "library", "extra"),
    [
        ("evolution_strategies.py", "gymnasium", "demo"),
        ("model_from_s3.py", "s3fs", "test-s3"),
        ("parameter_server.py", "sklearn", "demo"),
        ("source_statistics.py", "dask", "dask"),
        ("source_statistics.py", "pandas", "dask"),
    ],
)
def test_an_example_whose_library_is_missing_names_the_extra_that_brings_it(name: str, library: str, extra: str) -> None:
    ended = run_script(name, without=library)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].endswith(f'pip install "minray[{extra}]"') and "Traceback" not in ended.stderr


def test_the_notebooks_are_what_their_programs_say():
    """`python examples/notebooks/write.py` writes them; `make test-notebooks` executes them."""
    script = importlib.util.spec_from_file_location("write_notebooks", EXAMPLES / "notebooks" / "write.py")
    module = importlib.util.module_from_spec(script)
    script.loader.exec_module(module)
    written = {path.stem: path.read_text() for path in (EXAMPLES / "notebooks").glob("*.ipynb")}
    assert written == module.notebooks()
    with pytest.raises(ValueError, match="examples/x.py has no text"):
        module.cells_of_example("x", "print(1)\n")


# -- The short examples --


def test_every_example_is_tested():
    text = pathlib.Path(__file__).read_text()
    assert [path.stem for path in EXAMPLES.glob("*.py") if f'load("{path.stem}")' not in text] == []


def test_pi_monte_carlo(load):
    games = [random.Random(seed) for seed in range(10)]
    hits = sum(dice.random() ** 2 + dice.random() ** 2 < 1 for dice in games for _ in range(5_000))
    assert load("pi_monte_carlo").main(tasks=10, darts=5_000) == 4 * hits / 50_000
    assert 4 * hits / 50_000 == pytest.approx(3.14159, abs=0.05)


def test_nested_tasks_need_no_more_than_one_cpu(load):
    result, tasks = load("nested_tasks").main(size=1_000, num_cpus=1)
    assert result == sorted(result) and len(result) == 1_000
    assert tasks >= 7


def test_errors_and_retries(load):
    assert load("errors_and_retries").main() == {
        "exception": ("pears", 3),
        "attempts after exceptions": 3,
        "attempts after a crash": 2,
        "crash for good": "WorkerCrashedError",
        "too slow": "GetTimeoutError",
    }


def test_several_nodes(load):
    result = load("several_nodes").main(tasks=12)
    per_node = result.pop("tasks per node with SPREAD")
    assert len(per_node) == 3 and sum(per_node) == 12
    assert result == {"nodes": 3, "the resource led to its node": True, "affinity led to each node": True}


def test_a_users_scheduling_policy_decides_in_a_simulated_cluster(load):
    lab = load("policy_lab")
    assert lab.simulated(lab.MINE, tasks=4) == {"1": 4}
    assert lab.simulated("hybrid", tasks=4) == {"9": 4}, "without it, tasks stay at the driver's node"


def test_the_same_policy_decides_in_a_real_cluster(load):
    lab = load("policy_lab")
    with lab.real_cluster(lab.MINE):
        # The head may learn of the other nodes a moment after the gcs.
        wait_for_condition(lambda: lab.program(2, 0.0) == {"1": 2})


def test_the_figure_of_sparrow_shows_all_schemes(load, tmp_path, monkeypatch):
    sparrow = load("sparrow_figure")
    monkeypatch.setattr(sparrow, "NODES", 1)
    rows = sparrow.main([0.3, 0.6], seeds=2, jobs=3)
    assert len(rows) == 2 * 2 * 6
    told, text = sparrow.show_all(rows, tmp_path / "page.html"), (tmp_path / "page.html").read_text()
    for scheme in sparrow.SCHEMES:
        assert f"\n{scheme.name} / omniscient, mean " in told and f"\n{scheme.name} / omniscient, p50 " in told
    assert "Response time by load" in text and text.count("<circle") == 2 * 6


def test_broadcast(load):
    assert load("broadcast").main(megabytes=2, tasks=6, nodes=2) == {
        "tasks": 6,
        "sums are right": True,
        "nodes that ran tasks": 2,
        "nodes that have a copy": 2,
    }


def test_getting_in_a_loop_leaves_one_task_at_a_time(load):
    result = load("mistake_get_in_a_loop").main(tasks=8, seconds=0.05, num_cpus=4)
    assert result["get in the loop"] == 1
    assert 2 <= result["get after the loop"] <= 4


def test_large_argument_is_serialised_once_by_reference_and_each_time_by_value(load):
    result = load("mistake_large_argument_by_value").main(tasks=5, size=1_000_000)
    assert result["by value"] >= 5 * 1_000_000
    assert result["by reference"] == 1_000_000


def test_cancel_and_wait(load):
    result = load("cancel_and_wait").main(tasks=6)
    assert (result["winner"], result["cancelled"]) == (0, 5)
    assert result["started"] <= 3  # two CPUs, and one came free: the others were cancelled before they began


# -- Actors --


def test_over_constrained_actors_are_explained(load):
    told = load("over_constrained").main(patience_s=0.3)
    assert told["half a GPU each"] == ["trained with 1 batch"] * 2
    for line in told["a GPU each"]:
        assert "call Loader.load" in line and "waits for GPU on node head: 2 of 2 in use by an actor (pid " in line


def test_what_is_handed_on_as_a_reference_does_not_pass_through_the_driver(load):
    told = load("dereferencing_too_early").main(users=3, size=100_000)
    assert told["by reference"] == (0, 0)
    assert told["too early"][0] == 1 and told["too early"][1] >= 3


def test_counter_service_counts_right_although_its_node_is_killed(load):
    told = load("counter_service").main(clients=2, increments=60)
    assert told == {"counted": 120, "it was another node": True, "it has begun anew": True}


def test_web_crawler_finds_every_page_once(load):
    told = load("web_crawler").main(pages=20, requests_per_second=400, seconds=0.02)
    assert (told["pages"], told["dead links"], told["requests"]) == (20, 21, 41)


def test_parameter_server(load):
    pytest.importorskip("sklearn")
    told = load("parameter_server").main(workers=2, steps=150)
    assert told["gradients"] <= 300 and told["before"] < 0.5 and told["accuracy"] > 0.8


def test_evolution_strategies(load):
    pytest.importorskip("gymnasium")
    curve = load("evolution_strategies").main(environments=2, directions=12, generations=4, seed=1)
    assert len(curve) == 4 and max(curve) > 100


def test_source_statistics(load):
    told = load("source_statistics").main(limit=60, partitions=3)
    assert told["files"] == 60 and told["pandas agrees"]
    assert sum(told["widths"].values()) == told["lines"] > 10_000


def test_a_learning_curve_is_drawn_as_text_without_matplotlib(load, monkeypatch):
    pytest.importorskip("gymnasium")
    evolution_strategies = load("evolution_strategies")
    monkeypatch.setattr(evolution_strategies.importlib.util, "find_spec", lambda name: None)
    assert evolution_strategies.draw([0, 250, 500], "unused") == "\n".join(["#", "#" * 30, "#" * 60])


def test_a_recursive_task_runs_from_a_script():
    done = run_script("nested_tasks.py")
    assert (done.returncode, done.stdout[:20]) == (0, "sorted 2,000 numbers"), done.stderr


# -- The identifier index: the parts that need no cluster --


def test_files_are_found_in_order_and_packages_only_if_wanted(identifier_index, sources):
    (sources / "site-packages").mkdir()
    (sources / "site-packages" / "package.py").touch()
    python = sorted([name for name in SOURCES if name.endswith(".py")] + ["c/nowhere.py"])
    assert identifier_index.python_files(str(sources), with_packages=False) == python
    assert "site-packages/package.py" in identifier_index.python_files(str(sources), with_packages=True)


def test_postings_are_pairs_of_file_number_and_uses(identifier_index, sources):
    postings, skipped = identifier_index.index_files(str(sources), 7, ["a.py", "b/latin.py"])
    assert identifier_index.unpacked(postings["asyncio"]) == [(7, 2), (8, 1)]
    assert identifier_index.unpacked(postings["straße"]) == [(8, 1)]
    assert "def" not in postings and "." not in postings and skipped == []


def test_identifiers_that_python_takes_for_one_are_one(identifier_index, sources):
    postings, _ = identifier_index.index_files(str(sources), 0, ["b/ligature.py"])
    assert {name: identifier_index.unpacked(pairs) for name, pairs in postings.items()} == {"file": [(0, 2)]}


def test_unreadable_files_are_skipped_with_a_reason_and_leave_nothing(identifier_index, sources):
    files = ["c/not_utf8.py", "c/unfinished.py", "c/nowhere.py", "c/empty.py"]
    postings, skipped = identifier_index.index_files(str(sources), 0, files)
    assert [file for file, _ in skipped] == files[:3] and postings == {}
    assert all(reason for _, reason in skipped)


def test_merged_parts_equal_one_index(identifier_index):
    files = identifier_index.python_files(str(EXAMPLES), with_packages=False)
    parts = [identifier_index.index_files(str(EXAMPLES), number, [file]) for number, file in enumerate(files)]
    whole = identifier_index.index_files(str(EXAMPLES), 0, files)
    assert identifier_index.merge(identifier_index.merge(*parts[:2]), *parts[2:]) == whole
    assert identifier_index.summarise(identifier_index.merge(*reversed(parts))) != identifier_index.summarise(whole)


def test_dotted_names_are_counted_where_they_are_written(identifier_index, sources):
    count = identifier_index.count_dotted
    assert count(str(sources / "a.py"), ["asyncio", "Queue"]) == 1  # not the one in the comment
    assert count(str(sources / "b/latin.py"), ["asyncio", "Queue"]) == 0


def test_progress_is_shown_without_tqdm(identifier_index, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert list(identifier_index.progress(range(250), 250, "tasks")) == list(range(250))
    assert capsys.readouterr().err == "\rtasks: 250/250\n"


def test_a_wrong_index_does_not_pass_the_check(identifier_index, sources):
    report = identifier_index.Report(1, [], 1, 1, "wrong", 1, 1.0, 1.0, 1.0, [], {})
    with pytest.raises(SystemExit, match="differs from a single-process run"):
        identifier_index.check(report, str(sources), ["a.py"])


# -- The identifier index on a cluster --


def test_identifier_index(load, sources, capsys):
    identifier_index = load("identifier_index")
    arguments = ["--files-per-task=1", "--num-cpus=2", "--find=asyncio.Queue", "--find=self"]
    report = identifier_index.main([str(sources), *arguments])
    assert (report.files, report.tasks) == (7, 7 + 1)
    assert [file for file, _ in report.skipped] == ["c/not_utf8.py", "c/nowhere.py", "c/unfinished.py"]
    assert report.widest[0] == ("asyncio", 2)
    assert report.found == {"asyncio.Queue": [("a.py", 1)], "self": [("b/latin.py", 1)]}
    assert "a single process gives the same index" in capsys.readouterr().out


def test_many_tasks_cost_about_one_request_each(load):
    arguments = ["--limit=80", "--files-per-task=1", "--num-cpus=2", "--find=no_such_name"]
    report = load("identifier_index").main(arguments)
    assert report.tasks == 80 + 10 + 2 + 1 and report.found == {"no_such_name": []}
    assert 1.0 <= report.requests_per_task < 2.0
    assert 0.0 < report.frames_per_task < 10.0


def test_identifier_index_as_a_script():
    done = run_script("identifier_index.py", "--limit=12", "--files-per-task=3", "--num-cpus=2", "--no-check")
    assert done.returncode == 0, done.stderr
    assert "5 tasks in " in done.stdout and "tasks:" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["/no/such/folder"], "/no/such/folder is not a folder"),
        ([__file__], "test_examples.py is not a folder"),
        (["--limit=0"], "invalid positive value: '0'"),
        (["--find=os..path"], "'os..path' is not a name"),
    ],
)
def test_bad_arguments_are_told_and_nothing_starts(identifier_index, capsys, arguments, complaint):
    with pytest.raises(SystemExit) as exit_information:
        identifier_index.main(arguments)
    assert exit_information.value.code == 2
    assert complaint in capsys.readouterr().err


def test_a_folder_without_python_is_told(identifier_index, tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_information:
        identifier_index.main([str(tmp_path)])
    assert exit_information.value.code == 2
    assert "no readable .py files in " in capsys.readouterr().err


def test_model_from_s3(load, monkeypatch) -> None:
    pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "")
    told = load("model_from_s3").main(megabytes=2, nodes=2)
    assert told["everybody downloads"] == {"downloads": 2, "copies": 2}
    assert told["one downloads"] == {"downloads": 1, "copies": 2}


@pytest.mark.parametrize("store_bytes", [256 << 20, 16 << 20], ids=["in memory", "through the disk"])
def test_external_sort(load, store_bytes: int) -> None:
    told = load("external_sort").main(data_bytes=48 << 20, store_bytes=store_bytes, partitions=6)
    assert told["sorted"] and told["checksum is right"]
    assert str(told["store"]).startswith("Spilled") == (store_bytes < 48 << 20)
