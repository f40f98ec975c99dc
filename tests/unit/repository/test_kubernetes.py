"""The manifests of the guide to Kubernetes fit the image and one another."""

import re
from pathlib import Path
from typing import Any

import yaml

from progressor.settings import config

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs/how-to/deploy/kubernetes.md").read_text("utf-8")
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text("utf-8")

MANIFESTS: list[dict[str, Any]] = [
    manifest
    for block in re.findall(r"^```yaml\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    for manifest in yaml.safe_load_all(block)
]


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = (it for it in MANIFESTS if it["kind"] == kind)
    return found


POD = of_kind("Deployment")["spec"]["template"]
ENGINE = POD["spec"]["containers"][0]


def test_the_ports_are_those_of_the_image() -> None:
    ports = {it["name"]: it["containerPort"] for it in ENGINE["ports"]}

    assert f"EXPOSE {ports['grpc']} {ports['metrics']}" in DOCKERFILE
    assert ENGINE["readinessProbe"]["grpc"]["port"] == ports["grpc"]
    assert ENGINE["livenessProbe"]["tcpSocket"]["port"] == ports["grpc"]
    assert of_kind("Service")["spec"]["ports"][0]["port"] == ports["grpc"]


def test_the_user_is_that_of_the_image() -> None:
    user = POD["spec"]["securityContext"]["runAsUser"]

    assert f"USER {user}:{user}" in DOCKERFILE


def test_a_pod_has_time_to_drain() -> None:
    variables = {it["name"]: it.get("value") for it in ENGINE["env"]}
    drain = float(variables["PROGRESSOR_SERVER_DRAIN_TIMEOUT_SECONDS"])
    _, sleep = ENGINE["lifecycle"]["preStop"]["exec"]["command"]

    # The image asks for 5 s more than the drain timeout.
    assert POD["spec"]["terminationGracePeriodSeconds"] > float(sleep) + drain + 5


def test_everything_selects_the_pods() -> None:
    labels = POD["metadata"]["labels"]
    selectors = [
        of_kind("Deployment")["spec"]["selector"]["matchLabels"],
        of_kind("Service")["spec"]["selector"],
        of_kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        of_kind("PodMonitor")["spec"]["selector"]["matchLabels"],
    ]

    assert all(selector == labels for selector in selectors)


def test_the_variables_are_keys_of_the_configuration() -> None:
    known = {row.variable for row in config.reference()}
    job = of_kind("Job")["spec"]["template"]["spec"]["containers"][0]

    assert {it["name"] for it in (*ENGINE["env"], *job["env"])} <= known
