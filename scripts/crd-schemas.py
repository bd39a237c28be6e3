#!/usr/bin/env python3
"""Writes the schemas of the resources that `outrider render istio` prints, from the CustomResourceDefinitions of Istio and of
Gateway API, without descriptions, for the tests of crates/mesh.

    (cd tests/istio/istio && go mod download istio.io/istio sigs.k8s.io/gateway-api)
    scripts/crd-schemas.py "$(cd tests/istio/istio && go list -m -f '{{.Dir}}' istio.io/istio)" \
        "$(cd tests/istio/istio && go list -m -f '{{.Dir}}' sigs.k8s.io/gateway-api)"

Needs PyYAML. One file for each kind and version, crates/mesh/tests/schemas/KIND.VERSION.json.
"""

import json
import pathlib
import sys

import yaml

KINDS = {
    "EnvoyFilter": ["v1alpha3"],
    "VirtualService": ["v1"],
    "DestinationRule": ["v1"],
    "HTTPRoute": ["v1"],
}
OUTPUT = pathlib.Path(__file__).parent.parent / "crates/mesh/tests/schemas"


def bare(value):
    """The schema without the texts for people, and without rules in CEL."""
    if isinstance(value, dict):
        return {
            key: bare(inner)
            for key, inner in value.items()
            if not (key == "description" and isinstance(inner, str)) and key != "x-kubernetes-validations"
        }
    if isinstance(value, list):
        return [bare(inner) for inner in value]
    return value


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    istio, gateway_api = (pathlib.Path(argument) for argument in sys.argv[1:])
    files = [
        istio / "manifests/charts/base/files/crd-all.gen.yaml",
        gateway_api / "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
    ]
    OUTPUT.mkdir(exist_ok=True)
    for file in files:
        for document in yaml.safe_load_all(file.read_text()):
            if not document:
                continue
            kind = document["spec"]["names"]["kind"]
            for version in document["spec"]["versions"]:
                if version["name"] in KINDS.get(kind, []):
                    schema = bare(version["schema"]["openAPIV3Schema"])
                    path = OUTPUT / f"{kind}.{version['name']}.json"
                    path.write_text(json.dumps(schema, indent=1, sort_keys=True) + "\n")
                    print(path)


main()
