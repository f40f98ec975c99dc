"""docs/how-to/deploy/kubernetes.md: its manifests are valid, for the API server as for us."""

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from tests.support.engine.process import ROOT

kubernetes_validate = pytest.importorskip(
    "kubernetes_validate", reason="`make setup-rehearse` installs the schemas of Kubernetes"
)

VERSIONS = ("1.27", "1.37")
"""The first in which probes by gRPC are stable, and the newest with a schema here."""

PAGE = (ROOT / "docs/how-to/deploy/kubernetes.md").read_text("utf-8")


def manifests() -> Iterator[dict[str, Any]]:
    for block in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        yield from yaml.safe_load_all(block)


def of_kubernetes() -> list[dict[str, Any]]:
    """Return the manifests but for those of an operator, whose schemas Kubernetes does not have."""
    return [it for it in manifests() if "coreos.com" not in it["apiVersion"]]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", of_kubernetes(), ids=lambda it: it["kind"])
def test_a_manifest_is_valid(manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def _pod(manifest: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = manifest["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize(
    "spoil",
    [
        lambda it: it["spec"].pop("selector"),
        lambda it: it["spec"].update(replica=2),
        lambda it: _pod(it)["containers"][0]["readinessProbe"].update(grpc={"prot": 7420}),
        lambda it: _pod(it).update(terminationGracePeriodSeconds="45 s"),
        lambda it: _pod(it)["containers"][0]["env"].append({"value": "1"}),
    ],
)
def test_a_spoilt_manifest_is_found(spoil: Callable[[dict[str, Any]], object]) -> None:
    (found,) = (it for it in of_kubernetes() if it["kind"] == "Deployment")
    spoilt = copy.deepcopy(found)
    spoil(spoilt)

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(spoilt, VERSIONS[-1], strict=True)


def test_there_is_what_a_deployment_needs() -> None:
    assert {it["kind"] for it in of_kubernetes()} == {
        "Deployment", "Service", "PodDisruptionBudget", "Job",
    }  # fmt: skip
