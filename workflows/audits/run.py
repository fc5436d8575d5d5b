"""One start of an audit: trains the folds, judges the labels, retrains without the suspects."""

from collections import Counter
from dataclasses import replace

from bert_core.errors import UserError
from bert_core.evaluation.error_analysis import majority_classifier
from bert_core.strict_files import read_json_object
from workflows.audits.findings import SUSPECTS, audit_findings
from workflows.audits.report import DATA, AuditReport, summary_lines, write_audit_report
from workflows.audits.retraining import opened_retraining
from workflows.audits.settings import AuditSettings, retraining_settings
from workflows.finetuning.data import read_task_data
from workflows.model_location import open_encoder
from workflows.runs.storage import Storage
from workflows.runs.tracker import ARTIFACTS_NAME
from workflows.sweeps.folds import judged_folds, probable_out_of_fold
from workflows.sweeps.run import (
    Driver,
    SweepRun,
    append_figures,
    print_summary,
    started,
    unsent,
)
from workflows.sweeps.sweep import Sweep


def refuse_unjudged(sweep: Sweep) -> None:
    """Raises `UserError` where the labels that occur are too few to be judged."""
    task = sweep.data.task
    examples = [*sweep.data.train.examples, *sweep.data.dev.examples]
    counts = Counter(name for each in examples for name in task.label_names([each]) or ())
    several = task.problem_type == "multi_label_classification"
    most = len(examples) - 2 if several else len(examples)
    if sum(2 <= count <= most for count in counts.values()) < 2:
        what = f"fewer than two labels that two examples have{', and two lack' * several}"
        raise UserError(what, sweep.settings.source("train"), "check the column of labels")


def refuse_unfit_dev(settings: AuditSettings, storage: Storage) -> None:
    """Raises `UserError` for a dev file that no models can be compared on, before training."""
    own = retraining_settings(settings, None)
    encoder = open_encoder(own.model, storage.folder, own.tracking.uri_of(storage.folder))
    read_task_data(own, encoder.tokenizer)


def train(settings: AuditSettings, storage: Storage, sweep: Sweep) -> bool:
    """Trains the folds and both models that are compared, and writes what is found."""
    lines: list[str] = []
    failures: list[str] = []
    with started(sweep) as driver:
        complete = SweepRun(sweep, driver, keeps_winner=False).train()
        driver.status = "KILLED"
        if complete:
            failures = [f"{each.name}: {each.failure}" for each in sweep.trials if each.failure]
        if complete and not failures:
            complete, lines, failures = judge(settings, storage, sweep, driver)
        if complete:
            driver.end("FAILED" if failures else "FINISHED")
    if not complete:
        print("stopped; the same command goes on")
        return False
    if not lines:
        remedy = "fix the cause and repeat the command"
        raise UserError("not every fold could be trained", failures[0], remedy)
    lines += [f"failed       {failure}" for failure in failures]
    print_summary(sweep, lines, unsent(driver.tracking), "sends them", keep=not failures)
    return True


def judge(
    settings: AuditSettings, storage: Storage, sweep: Sweep, driver: Driver
) -> tuple[bool, list[str], list[str]]:
    """Writes the suspects, retrains without them; whether all is done, the summary, failures."""
    folder = sweep.folder.path / ARTIFACTS_NAME
    folds = judged_folds(sweep.folds_of_the_best())
    found = probable_out_of_fold(folds)
    findings = audit_findings(found, folds)
    findings.write(folder)
    outcome = sweep.outcome(driver.at_once)
    report = AuditReport(
        name=sweep.folder.name,
        task=settings.task,
        model=outcome.model,
        data=outcome.data,
        folds=len(folds),
        seeds=settings.seeds,
        criterion=outcome.criterion,
        metrics=found.metrics,
        findings=findings,
        majority=majority_classifier(found.task, found.examples),
        not_retrained="--no-retrain" if findings.suspects else "there are no suspects",
    )
    found.write(folder, sweep.folder.name)
    write_audit_report(report, folder)
    complete, failures = True, list[str]()
    if settings.retrain and findings.suspects:
        suspects = folder / f"{SUSPECTS}.csv"
        with opened_retraining(settings, storage, sweep, suspects) as retraining:
            complete = retraining.train(driver)
            failures = retraining.failures()
            why = "a run failed" if failures else "not yet"
            report = replace(report, retrained=retraining.result(), not_retrained=why)
        write_audit_report(report, folder)
    if complete and not failures:
        figures = {"suspects": float(len(findings.suspects)), "noise": findings.errors.share}
        append_figures(sweep, figures)
    return complete, summary_lines(report, folder), failures


def is_reported(settings: AuditSettings, sweep: Sweep) -> bool:
    """Whether nothing is left to do; an earlier audit may not have retrained anything."""
    path = sweep.folder.path / ARTIFACTS_NAME / DATA
    remedy = "delete it: the same command writes it anew"
    report = read_json_object(path, remedy, allow_nan=True) if path.is_file() else {}
    done = report.get("retrained") is not None or report.get("num_suspects") == 0
    return bool(report) and (done or not settings.retrain)
