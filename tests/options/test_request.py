"""Requests: what the options of a command are read into."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest

from harness.execution.run_settings import CacheModel, Effort, RunSettings
from harness.model.operation import operation_named
from harness.options.command import CommandParser
from harness.options.device import CacheOptions, arch_of, cache_model, gpu_of, modelled_arch, require_arch
from harness.options.output import ReportOptions
from harness.options.problem import options_of
from harness.options.request import Request
from harness.options.variants import Selection
from harness.studies.commands import COMMANDS, command_named
from harness.support.errors import UsageError
from harness.support.gpu_data_sheets import GPUS

ELSEWHERE = {"causal", "noise", "seconds", "sustained", "watch"}
"""Options that become fields of other names, or are for the loop around a command."""


def parser_of(command: str) -> argparse.ArgumentParser:
    parser = CommandParser(add_help=False)
    command_named(command).add_options(parser, operation_named("attention"))
    return parser


def read(command: str, *words: str) -> Request:
    request: Request = command_named(command).request.read(parser_of(command).parse_args(words))
    return request


def test_an_option_that_is_left_out_has_the_default_of_its_field():
    request = read("compare")
    assert request.settings == RunSettings()
    assert (request.selection, request.report) == (Selection(), ReportOptions(keep=False))
    assert request.problem.make() == operation_named("attention").problem()
    assert read("list").report.keep is None, "it has nothing to keep"
    assert read("bench").settings == RunSettings()


def test_options_become_one_object_that_is_handed_down():
    words = ("--step-limit", "7", "--seed", "3", "--threads", "2", "--device", "emulator", "--sanitize")
    settings = read("compare", *words, "--count", "never", "--regime", "large").settings
    effort = Effort(seed=3)
    assert settings == RunSettings(
        step_limit=7, seed=3, threads=2, device="emulator", sanitize=True, count="never", regime="large", effort=effort
    )
    assert settings.cores == 2
    assert read("bench", "--noise", "2", "--sustained", "0").settings.effort == Effort(noise=0.02, sustained_seconds=0)
    with pytest.raises(UsageError, match="--noise is -1; it has to be a number of at least 0"):
        read("bench", "--noise", "-1")


def test_the_architecture_is_the_emulators():
    settings = read("compare", "--arch", "sm_100a").settings
    assert settings == RunSettings(arch="sm_100a") and arch_of(replace(settings, device="emulator")) == "sm_100a"
    assert read("fuzz", "fa2-cupy", "--arch", "sm_90a").settings.arch == "sm_90a"
    for command in ("traffic", "why", "show"):
        assert read(command, "fa2-cupy", "--arch", "sm_100a").settings.arch == "sm_100a"
    with pytest.raises(UsageError, match="--arch is 'hopper'; it has to look like sm_90 or sm_100a"):
        require_arch(RunSettings(arch="hopper"))
    with pytest.raises(UsageError, match="--arch is 'sm_20'; the compilers support sm_50 and newer"):
        require_arch(RunSettings(arch="sm_20"))
    with pytest.raises(UsageError, match="a GPU has its own"):
        require_arch(RunSettings(arch="sm_100a", device="gpu"))


def test_the_modelled_gpu_and_the_architecture_fit_together():
    emulator = RunSettings(device="emulator")
    assert gpu_of(CacheOptions(), replace(emulator, arch="sm_100a")) is GPUS["b200"]
    assert gpu_of(CacheOptions(), emulator) is GPUS["h200"]
    assert modelled_arch(emulator, GPUS["l4"]) == "sm_89"
    assert modelled_arch(replace(emulator, arch="sm_100a"), GPUS["b200"]) == "sm_100a"
    with pytest.raises(UsageError, match="--arch is sm_100a, and --gpu L4 is sm_89"):
        modelled_arch(replace(emulator, arch="sm_100a"), GPUS["l4"])


def test_caches_are_those_of_the_gpu_that_is_named():
    request = read("traffic", "fa2-cupy", "--gpu", "l4", "--l2-bytes", "4096", "--cache-control", "all")
    assert cache_model(request.cache_options, request.settings) == CacheModel(GPUS["l4"], 4096, flushed=True)
    assert request.cache_options.are_special and not read("why", "fa2-cupy").cache_options.are_special
    with pytest.raises(UsageError, match="--l2-bytes is 0; it has to be at least 1"):
        cache_model(CacheOptions(l2_bytes=0), request.settings)


def test_the_selection_has_names_files_and_tile_sizes():
    found = read("compare", "--variants", "fa*", "--plugin", "a.py", "--plugin", "b.py", "--tile", "Br=2").selection
    assert found == Selection("fa*", [Path("a.py"), Path("b.py")], "Br=2")


def test_a_swept_field_takes_the_place_of_no_option():
    problem = read("traffic", "--q-len", "5", "--causal").problem
    assert problem.make().q_len == 5 and problem.make_with("head_dim", 16).head_dim == 16
    with pytest.raises(UsageError, match="--sweep q_len and --q-len set the same field"):
        problem.make_with("q_len", 7)
    assert read("traffic").problem.make_with("causal", False) == read("traffic").problem.make()


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_is_read_and_forgotten(name: str):
    operation = operation_named("attention")
    kinds = (command_named(name).request, RunSettings, Selection, ReportOptions, CacheOptions)
    known = {each.name for kind in kinds for each in dataclasses.fields(kind)} | ELSEWHERE
    known |= {*options_of(operation), *operation.lengths}
    if name == "run":  # whose files go by the names of tensors
        known |= {tensor.name.lower() for tensor in operation.problem().tensors} | {
            each.lower() for each in operation.further_inputs
        }
    given = {action.dest for action in parser_of(name)._actions}
    assert given - known == set()
