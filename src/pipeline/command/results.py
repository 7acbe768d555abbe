"""`python -m pipeline results`: keeps the results of experiments, and writes the tables of docs from them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.artifacts import fingerprint
from pipeline.config import sources
from pipeline.config.arguments import WHEEL_CONF, conf_dir
from pipeline.errors import UserError
from pipeline.report.results import claims_page, evaluated, kept, kept_draws, pages, verdicts

USAGE = """\
python -m pipeline results list             what is kept, and what has changed since: conf/, the rule of draws
python -m pipeline results keep FOLDER ...  keep the exhibits of finished sweeps or runs below docs/results
python -m pipeline results evaluate NAME .. columns and claims that an experiment has got since, from its kept rows
python -m pipeline results draws FOLDER ... keep how often the claims hold in sweeps with +draws=clock
python -m pipeline results write            write docs/claims.md and the marked tables of docs
python -m pipeline results check            name every page that `write` would change, and draws of a former rule"""


def main(argv: Sequence[str]) -> int:
    """Runs one of the commands. Raises UserError."""
    commands: Mapping[str, Callable[[Sequence[str]], int]] = {
        "list": _list, "keep": _keep, "evaluate": _evaluate, "draws": _keep_draws, "write": _write, "check": _check
    }  # fmt: skip
    name, words = (argv[0], argv[1:]) if argv else ("", ())
    if name not in commands or (words and name not in ("keep", "evaluate", "draws")):
        raise UserError(f"results: {' '.join(argv) or 'nothing'} was asked for; there are\n{USAGE}")
    if name != "list" and conf_dir() == WHEEL_CONF:
        raise UserError(
            f"results {name} writes or checks docs/ of a checkout, and this is an installed package, in "
            f"{WHEEL_CONF.parents[1]}. Run it in a checkout of the repository; `results list` works here, too."
        )
    return commands[name](words)


def _list(_words: Sequence[str]) -> int:
    results, folder = _kept(), kept.results_folder()
    for result in results.values():
        print(f"{result.experiment:<34} {result.date}  {'; '.join(result.changes()) or 'up to date'}")
    for one in kept_draws.read_draws(folder):
        said = "; ".join(filter(None, [*one.changes(), one.rule_text()]))
        print(f"{one.experiment:<34} draws of the clock: {said or 'up to date'}")
    for name in experiments_without_result(results):
        print(f"{name:<34} not kept")
    return 0


def _keep(words: Sequence[str]) -> int:
    if not words:
        raise UserError("results keep: name the folders of finished sweeps or runs, such as outputs/sweeps/DATE/TIME.")
    for word in words:
        print(kept.keep(Path(word).absolute(), kept.results_folder()))
    return 0


def _evaluate(words: Sequence[str]) -> int:
    results = _kept()
    if not words or not set(words) <= set(results):
        raise UserError(f"results evaluate: name experiments that have a kept result: {', '.join(results)}.")
    for word in words:
        exhibit, places = kept.drawn_exhibit(word).exhibit, kept.written_places(word)
        print(evaluated.evaluate(results[word], exhibit, places).write(kept.results_folder()))
    return 0


def _keep_draws(words: Sequence[str]) -> int:
    if not words:
        raise UserError("results draws: name the folders of finished sweeps with +draws=clock.")
    for folder in (Path(word).absolute() for word in words):
        experiment = kept.experiment_of(folder, kept.finished_jobs(folder))
        print(kept_draws.keep_draws(kept.drawn_exhibit(experiment), experiment, folder, kept.results_folder()))
    return 0


def _write(_words: Sequence[str]) -> int:
    for path, text in different_pages():
        fingerprint.write_atomic(path, text)
        print(f"written: {path}")
    return 0


def _check(_words: Sequence[str]) -> int:
    different = [path for path, _ in different_pages()]
    for path in different:
        print(f"{path} is not what docs/results says: `python -m pipeline results write`")
    for one in kept_draws.read_draws(kept.results_folder()):
        if said := one.rule_text():
            print(f"{one.experiment}: draws of the clock {said}")
    return 1 if different else 0


def different_pages() -> Iterator[tuple[Path, str]]:
    """Each page that `results write` would change, with its new text."""
    for path, text in written_pages():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            yield path, text


def written_pages() -> Iterator[tuple[Path, str]]:
    """Every page of docs with tables of results, as it should be, and docs/claims.md."""
    results = _kept()
    docs = kept.results_folder().parent
    for path in sorted(docs.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if pages.marked_results(text):
            yield path, pages.written_page(text, results, path.name)
    drawn = kept_draws.current_draws(kept.results_folder())
    shares = {name: one.claims for name, one in drawn.items()}
    former = {name: one.former_claims for name, one in drawn.items()}
    of_papers = [result for name, result in results.items() if name.partition("/")[0] in claims_page.PAPERS]
    claims, beside = verdicts.decide(of_papers, shares), verdicts.decide(of_papers, shares, ours=True)
    real = [result for name, result in results.items() if name.startswith(f"{claims_page.REAL_TEXT}/")]
    on_real_text = verdicts.decide(real, shares, ours=True)
    waiting = experiments_without_result(results)
    text = claims_page.claims_page(claims, results, waiting, on_real_text, beside, former)
    yield docs / claims_page.CLAIMS_PAGE, text


def _kept() -> dict[str, kept.KeptResult]:
    return {result.experiment: result for result in kept.read_results(kept.results_folder())}


def experiments_without_result(results: Mapping[str, kept.KeptResult]) -> dict[str, dict[str, str]]:
    """The papers' experiments that show an exhibit and have no kept result: their claims, with what is reported."""
    folder = conf_dir() / "experiment"
    files = sorted(path for paper in claims_page.PAPERS for path in (folder / paper).glob("[!_]*.yaml"))
    names = {path.relative_to(folder).with_suffix("").as_posix(): path for path in files}
    waiting = {name: sources.read_file(path) for name, path in names.items() if name not in results}
    return {name: _reported_claims(node["exhibit"]) for name, node in waiting.items() if "exhibit" in node}


def _reported_claims(exhibit: Mapping[str, Any]) -> dict[str, str]:
    return {claim["statement"]: claim["reported"] for claim in exhibit.get("claims", ()) if claim.get("reported")}
