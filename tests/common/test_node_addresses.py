"""Where the nodes of a cluster are, as the configuration says it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.common.config import load_config
from penstock.common.errors import ConfigError
from penstock.common.node_addresses import node_addresses

WHOLE = {"clusterNode": 2, "clusterNodes": "1=alpha:7600, 2=[::1]:7601,3=10.0.0.3:7602", "clusterCertificate": "c.pem",
         "clusterKey": "k.pem", "clusterAuthority": "a.pem", "zookeeper": "z:2181"}


def addresses(**more: Any) -> dict[int, tuple[str, int]]:
    return node_addresses(load_config({**WHOLE, **more}, environment={}))


def test_each_node_has_a_host_and_a_port() -> None:
    """Names and addresses, those of IPv6 in brackets."""
    assert addresses() == {1: ("alpha", 7600), 2: ("::1", 7601), 3: ("10.0.0.3", 7602)}


def test_there_is_no_cluster_unless_this_node_has_a_number() -> None:
    """The other keys mean nothing then."""
    assert node_addresses(load_config({}, environment={})) == {}
    assert addresses(clusterNode=0) == {}


@pytest.mark.parametrize(("key", "value", "problem"), [
    ("clusterNodes", "", "no node and its address"),
    ("clusterNodes", "1=alpha", "no node and its address"),
    ("clusterNodes", "1=alpha:70000, 2=beta:1", "no node and its address"),
    ("clusterNodes", "2=alpha:1, 2=beta:1", "node 2 twice"),
    ("clusterNodes", "1=alpha:1, 3=beta:1", "doesn't name it"),
    ("clusterNodes", "2=alpha:1", "names 1 nodes"),
    ("clusterKey", "", "needs clusterKey"),
    ("zookeeper", "", "needs zookeeper"),
])
def test_what_is_missing_or_wrong_is_named(key: str, value: str, problem: str) -> None:
    """A node doesn't start with half of it."""
    with pytest.raises(ConfigError, match=problem):
        addresses(**{key: value})
