"""What is deployed side by side finds each other: names, ports, files and settings agree."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from progressor import errors
from progressor.settings import config

DOCKER = Path(__file__).parents[3] / "docker"


def loaded(path: str) -> Any:
    return yaml.safe_load((DOCKER / path).read_text("utf-8"))


COMPOSE = loaded("compose.yaml")
PROMETHEUS = loaded("prometheus/prometheus.yml")
COLLECTOR = loaded("collector/config.yaml")
SERVICES: Mapping[str, Any] = COMPOSE["services"]
ENGINES = {name: one for name, one in SERVICES.items() if one.get("command") == ["serve"]}

DOCKERFILE = (DOCKER / "Dockerfile").read_text("utf-8")
VARIABLES = {row.variable for row in config.reference()}

_VARIABLE = re.compile(r"\bPROGRESSOR_\w+")


def environment(service: str) -> Mapping[str, str]:
    found: Mapping[str, str] = SERVICES[service]["environment"]
    return found


def targets(job: str) -> list[str]:
    """Return what Prometheus reads for a job."""
    (found,) = (
        prometheu for prometheu in PROMETHEUS["scrape_configs"] if prometheu["job_name"] == job
    )
    return [target for each in found["static_configs"] for target in each["targets"]]


def port_of(bind: str) -> int:
    return int(bind.rpartition(":")[2])


def published(service: str) -> dict[int, str]:
    """Return the ports of a service's container that the host has, with where."""
    places = (each.rpartition(":") for each in SERVICES[service].get("ports", ()))
    return {int(port): host for host, _, port in places}


def mounts(service: str) -> dict[str, Path]:
    """Return what a service finds in its container, with where it is here."""
    found = (each.split(":") for each in SERVICES[service].get("volumes", ()))
    return {at: DOCKER / source for source, at, *_ in found if source.startswith(".")}


def test_prometheus_reads_each_engine_where_its_metrics_are() -> None:
    ports = {
        name: port_of(environment(name)["PROGRESSOR_TELEMETRY_METRICS_BIND"]) for name in ENGINES
    }

    assert targets("progressor") == [f"{name}:{port}" for name, port in ports.items()]


def test_engines_push_to_the_collector_which_listens_there() -> None:
    (receiver,) = COLLECTOR["receivers"]["otlp"]["protocols"].values()
    for name in ENGINES:
        endpoint = urlsplit(environment(name)["PROGRESSOR_TELEMETRY_OTLP_ENDPOINT"])
        assert (endpoint.scheme, endpoint.hostname) == ("http", "collector")
        assert endpoint.port == port_of(receiver["endpoint"])


def test_the_collector_passes_spans_on_to_where_they_are_taken() -> None:
    service, _, port = COLLECTOR["exporters"]["otlp"]["endpoint"].partition(":")
    (option,) = SERVICES[service]["command"]

    assert option == f"--set=receivers.otlp.protocols.grpc.endpoint=0.0.0.0:{port}"


def test_the_pipelines_of_the_collector_are_of_parts_that_it_has() -> None:
    pipelines = COLLECTOR["service"]["pipelines"]

    assert {*pipelines} == {"traces", "metrics"}
    for pipeline in pipelines.values():
        for kind in ("receivers", "processors", "exporters"):
            assert {*pipeline[kind]} <= {*COLLECTOR[kind]}
    used = {kind: {one for each in pipelines.values() for one in each[kind]} for kind in pipeline}
    assert used == {kind: {*COLLECTOR[kind]} for kind in used}


def test_prometheus_reads_the_collector_where_it_tells_of_itself() -> None:
    (reader,) = COLLECTOR["service"]["telemetry"]["metrics"]["readers"]
    at = reader["pull"]["exporter"]["prometheus"]

    assert targets("collector") == [f"collector:{at['port']}"]


def test_grafana_asks_services_at_their_ports() -> None:
    sources = loaded("grafana/provisioning/datasources/datasources.yml")["datasources"]

    for source in sources:
        url = urlsplit(source["url"])
        assert url.port in published(str(url.hostname))
    (default,) = (each for each in sources if each.get("isDefault"))
    assert (default["type"], urlsplit(default["url"]).hostname) == ("prometheus", "prometheus")
    interval = PROMETHEUS["global"]["scrape_interval"]
    assert default["jsonData"]["timeInterval"] == interval


def test_grafana_finds_the_dashboard_where_it_is_told_to_look() -> None:
    (provider,) = loaded("grafana/provisioning/dashboards/dashboards.yml")["providers"]
    home = Path(environment("grafana")["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    here = mounts("grafana")[provider["options"]["path"]]

    assert (here / home.name).is_file()
    assert str(home.parent) == provider["options"]["path"]


def test_prometheus_finds_its_rules() -> None:
    here = mounts("prometheus")["/etc/prometheus"]

    assert (here / "prometheus.yml").is_file()
    assert all((here / name).is_file() for name in PROMETHEUS["rule_files"])


def test_what_is_mounted_is_there_and_cannot_be_changed() -> None:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            if volume.startswith("."):
                assert volume.endswith(":ro"), name
        assert all(path.exists() for path in mounts(name).values()), name


def test_no_port_of_the_host_is_taken_twice_or_open_to_others() -> None:
    places = [place for name in SERVICES for place in published(name).values()]

    assert len(set(places)) == len(places)
    assert all(place.startswith("127.0.0.1:") for place in places)


def test_every_image_has_a_version() -> None:
    images = {service["image"] for service in SERVICES.values()} - {"progressor"}

    assert all(re.fullmatch(r"[\w/.-]+:v?\d[\w.]*", image) for image in images)


def test_every_setting_that_containers_are_given_is_one() -> None:
    assert {*_VARIABLE.findall((DOCKER / "compose.yaml").read_text("utf-8"))} <= VARIABLES
    assert {*_VARIABLE.findall(DOCKERFILE)} <= VARIABLES


def test_the_image_has_open_what_it_listens_on() -> None:
    ports = {port_of(bind) for bind in re.findall(r"_BIND=(\S+)", DOCKERFILE)}
    exposed = re.findall(r"^EXPOSE (.+)$", DOCKERFILE, re.MULTILINE)

    assert {*map(int, exposed[0].split())} == ports


GUIDE = (DOCKER.parent / "docs/how-to/deploy/kubernetes.md").read_text("utf-8")

MANIFESTS: list[dict[str, Any]] = [
    manifest
    for block in re.findall(r"^```yaml\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    for manifest in yaml.safe_load_all(block)
]


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = (manifest for manifest in MANIFESTS if manifest["kind"] == kind)
    return found


POD = of_kind("Deployment")["spec"]["template"]
CONTAINER = POD["spec"]["containers"][0]


def manifest_environment() -> dict[str, str]:
    """Return the variables of the manifest, but for secrets."""
    return {it["name"]: it["value"] for it in CONTAINER["env"] if "value" in it}


def test_the_ports_are_those_of_the_image() -> None:
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    given = manifest_environment()

    assert f"EXPOSE {ports['grpc']} {ports['metrics']}" in DOCKERFILE
    assert given["PROGRESSOR_SERVER_BIND"].startswith(f"0.0.0.0:{ports['grpc']},")
    assert CONTAINER["livenessProbe"]["tcpSocket"]["port"] == ports["grpc"]
    assert of_kind("Service")["spec"]["ports"][0]["port"] == ports["grpc"]


def test_the_user_is_that_of_the_image() -> None:
    user = POD["spec"]["securityContext"]["runAsUser"]

    assert f"USER {user}:{user}" in DOCKERFILE


def test_a_pod_has_time_to_drain() -> None:
    variables = {variable["name"]: variable.get("value") for variable in CONTAINER["env"]}
    drain = float(variables["PROGRESSOR_SERVER_DRAIN_TIMEOUT_SECONDS"])
    _, sleep = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]

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
    job = of_kind("Job")["spec"]["template"]["spec"]["containers"][0]

    assert {variable["name"] for variable in (*CONTAINER["env"], *job["env"])} <= VARIABLES


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_of_the_compose_file_starts_with_its_variables(name: str) -> None:
    config.load(environment=environment(name)).check_exposure()


def test_the_image_alone_does_not_serve_without_access_control() -> None:
    variables = dict(re.findall(r"\b(PROGRESSOR_\w+)=(\S+:\d+)", DOCKERFILE))
    loaded = config.load(environment=variables)
    with pytest.raises(errors.ConfigError, match=re.escape("access.enabled")):
        loaded.check_exposure()

    config.load(environment=variables | {"PROGRESSOR_ACCESS_ENABLED": "true"}).check_exposure()


def test_the_manifest_of_kubernetes_has_access_control() -> None:
    loaded = config.load(environment=manifest_environment())

    assert loaded.access.enabled
    assert CONTAINER["readinessProbe"]["exec"]["command"][1] in loaded.server.bind
