"""Runs `fuzz` as a command for a page, and reads its JSON, whose format is stable."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from harness.model.discovery import REPOSITORY_ROOT
from harness.support.errors import SandboxError

if TYPE_CHECKING:
    from harness.studies.report.command import ReportRequest


def run_campaign_of(variant: str, request: ReportRequest) -> dict[str, Any]:
    """The JSON of `fuzz` for one variant. Raises `SandboxError` if the command produces none."""
    # A plugin's path is relative to the caller, and the process starts in another folder.
    plugins = [word for path in request.selection.plugin for word in ("--plugin", str(path.resolve()))]
    command = [
        sys.executable, "-m", "harness", "fuzz", variant, "--operation", request.problem.operation, "--format", "json",
        "--examples", str(request.fuzz), "--seed", str(request.settings.seed),
        "--device", request.settings.device, *plugins,
        *(["--sanitize"] if request.settings.sanitize else []),
    ]  # fmt: skip
    ended = subprocess.run(command, cwd=REPOSITORY_ROOT, capture_output=True, text=True)
    try:
        (campaign,) = json.loads(ended.stdout)["campaigns"]
    except (ValueError, KeyError) as error:
        said = " ".join(ended.stderr.split()) or f"exit status {ended.returncode}"
        raise SandboxError(f"the campaign of {variant} did not come to an end: {said}") from error
    return dict(campaign)


def campaign_or_error(variant: str, request: ReportRequest) -> dict[str, Any]:
    """Like `run_campaign_of`, but a campaign without a result is returned as an error."""
    try:
        return run_campaign_of(variant, request)
    except SandboxError as error:
        return error_result(variant, request, str(error))


def error_result(variant: str, request: ReportRequest, reason: str) -> dict[str, Any]:
    """A result in the JSON format of `fuzz` for a campaign that failed to run."""
    return {
        "variant": variant, "verdict": "error", "reason": reason, "kind": None, "examples": 0, "refused": 0,
        "seed": request.settings.seed, "error_over_budget": None, "failure": None, "replay": None,
    }  # fmt: skip
