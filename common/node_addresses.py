"""Where the nodes of a cluster listen for each other, as the configuration says it."""

from __future__ import annotations

import re

from penstock.common.config import Config
from penstock.common.errors import ConfigError

_NODE = re.compile(r"([1-9][0-9]?)=(\[[0-9A-Fa-f:.]+\]|[^\s:,\[\]]+):([0-9]{1,5})")
_NODES_MAX = 3


def node_addresses(config: Config) -> dict[int, tuple[str, int]]:
    """Returns host and port of each node by its number; of none where there is no cluster. Raises ConfigError."""
    if not config.cluster_node:
        return {}
    found: dict[int, tuple[str, int]] = {}
    for text in config.cluster_nodes.split(","):
        node = _NODE.fullmatch(text.strip())
        if node is None or int(node[3]) > 65_535:
            raise ConfigError(f"clusterNodes = {config.cluster_nodes!r}: {text.strip()!r} is no node and its address",
                              hint="for example 1=alpha:7600, 2=beta:7600, 3=gamma:7600")
        if int(node[1]) in found:
            raise ConfigError(f"clusterNodes names node {node[1]} twice")
        found[int(node[1])] = node[2].strip("[]"), int(node[3])
    if config.cluster_node not in found:
        raise ConfigError(f"clusterNode is {config.cluster_node}, and clusterNodes doesn't name it")
    if not 2 <= len(found) <= _NODES_MAX:
        raise ConfigError(f"clusterNodes names {len(found)} nodes; a cluster has 2 or {_NODES_MAX}")
    missing = [key for key, value in (
        ("clusterCertificate", config.cluster_certificate), ("clusterKey", config.cluster_key),
        ("clusterAuthority", config.cluster_authority), ("zookeeper", config.zookeeper)) if not value]
    if missing:
        raise ConfigError(f"a node of a cluster needs {' and '.join(missing)}")
    return found
