"""What must hold between several runs of one plan, without knowing the gradients."""

from __future__ import annotations

import dataclasses

from harness.model.cases.property import Property, Trial
from harness.model.operation import operation_named
from harness.operations._across_devices.properties import PROPERTIES as OF_RINGS

OF_GRADIENTS = operation_named("attention-backward").properties
WEIGHTS_SUM = OF_GRADIENTS["weights-sum"]


def weights_sum(trial: Trial) -> str | None:
    """A row's weights add up to 1, over all devices."""
    return WEIGHTS_SUM.violation(dataclasses.replace(trial, problem=trial.problem.whole))


PROPERTIES: dict[str, Property] = {
    **OF_RINGS,
    "gradient-sum": OF_GRADIENTS["gradient-sum"],
    "weights-sum": dataclasses.replace(WEIGHTS_SUM, violation=weights_sum),
}
"""Every property by name: those of a ring, and those of gradients."""
