"""V-IPU controllers: two names, a string or a list, and commas that --set took for its own."""

import pytest
from tests.chart.helm_render import Helm, Refused


def controllers(helm: Helm, *words: str, **values: object) -> str:
    rendered = helm.template(*words, values=values)
    found = rendered.one("ConfigMap", "gc-ipu-operator-vipu-controllers")
    text: str = found["data"]["controllers.yaml"]
    assert found["metadata"]["annotations"]["muster.dev/values"] == text
    return text


@pytest.mark.parametrize("name", ["vipuControllers", "global.vipuControllers"])
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("=a:1:k=v", "a:1:k=v"),
        (r"=a:1:k=v\,b:2:k=w", "a:1:k=v,b:2:k=w"),
        ("={a:1:k=v,b:2:k=w}", "a:1:k=v,b:2:k=w"),
        ("[0]=a:1:k=v", "a:1:k=v"),
    ],
)
def test_a_string_and_a_list_are_the_same(helm: Helm, name: str, typed: str, expected: str) -> None:
    assert controllers(helm, "--set", name + typed) == expected


def test_lists_of_a_file_keep_their_order(helm: Helm) -> None:
    given = ["z:1:k=v", "b:2:k=w,c:3:k=x"]

    assert controllers(helm, vipuControllers=given) == "z:1:k=v,b:2:k=w,c:3:k=x"


def test_both_names_count_and_nothing_counts_twice(helm: Helm) -> None:
    given = controllers(
        helm, vipuControllers=["a:1:k=v", "b:2:k=w"], **{"global": {"vipuControllers": "c:3:k=x,a:1:k=v"}}
    )

    assert given == "c:3:k=x,a:1:k=v,b:2:k=w"


@pytest.mark.parametrize("name", ["vipuControllers", "global.vipuControllers"])
@pytest.mark.parametrize(
    "last",
    [
        "pod2:8090:ipunode=pod2",
        "pod2.example.com:8090:ipunode=pod2",
        "10.0.0.2:8090:ipunode=pod2",
        "pod2:8090:example.com/rack=r2",
        "pod2:8090:ipunode=7",
        "pod2:8090:ipunode=true",
        "pod2:8090:ipunode=",
    ],
)
def test_a_comma_that_split_the_list_is_joined_again(helm: Helm, name: str, last: str) -> None:
    assert controllers(helm, "--set", f"{name}=pod1:8090:ipunode=pod1,{last}") == f"pod1:8090:ipunode=pod1,{last}"


def test_where_the_order_is_lost_the_exact_command_is_told(helm: Helm) -> None:
    with pytest.raises(Refused) as error:
        controllers(helm, "--set", "vipuControllers=a:1:k=v,z:2:k=w,b.example.com:3:k=x")

    assert r'--set vipuControllers="a:1:k=v\,b.example.com:3:k=x\,z:2:k=w"' in str(error.value)
    typed = str(error.value).partition('--set vipuControllers="')[2].partition('"')[0]
    assert controllers(helm, "--set", f"vipuControllers={typed}") == "a:1:k=v,b.example.com:3:k=x,z:2:k=w"


@pytest.mark.parametrize("entry", ["pod1", "pod1:8090", "pod1:8090:label", "pod1:port:k=v", "po d:1:k=v", "a:1:k=v=w"])
def test_what_is_no_controller_is_named(helm: Helm, entry: str) -> None:
    with pytest.raises(Refused, match="host:port:key=value") as error:
        controllers(helm, vipuControllers=[entry])

    assert f'"{entry}"' in str(error.value)


def test_the_remains_of_no_list_are_unknown_values(helm: Helm) -> None:
    with pytest.raises(Refused, match="a:1:k=v"):
        controllers(helm, "--set", "a:1:k=v")


def test_the_proxy_watches_the_list_and_may_read_no_other_config_map_but_its_tracker(helm: Helm) -> None:
    rendered = helm.template()
    settings = rendered.settings("gc-ipu-operator-vipu-proxy", "proxy.yaml")
    assert settings["controllers_map"] == "gc-ipu-operator-vipu-controllers"
    assert "controllers_file" not in settings
    read = {
        tuple(rule["resourceNames"])
        for rule in rendered.one("Role", "gc-ipu-operator-vipu-proxy")["rules"]
        if "watch" in rule["verbs"]
    }
    assert read == {("ipu-partitions-tracker",), ("gc-ipu-operator-vipu-controllers",)}
    pod = rendered.pod("Deployment", "gc-ipu-operator-vipu-proxy")
    assert "controllers" not in {each["name"] for each in pod["volumes"]}


def test_without_roles_of_the_chart_the_proxy_reads_the_mounted_list(helm: Helm) -> None:
    rendered = helm.template(values={"vipuProxy": {"rbac": {"create": False}}})
    settings = rendered.settings("gc-ipu-operator-vipu-proxy", "proxy.yaml")
    pod = rendered.pod("Deployment", "gc-ipu-operator-vipu-proxy")

    (volume,) = (each for each in pod["volumes"] if each["name"] == "controllers")
    (mount,) = (each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "controllers")
    assert volume["configMap"]["name"] == "gc-ipu-operator-vipu-controllers"
    assert "subPath" not in mount  # the kubelet never renews what is mounted so
    assert settings["controllers_file"] == mount["mountPath"] + "/controllers.yaml"
