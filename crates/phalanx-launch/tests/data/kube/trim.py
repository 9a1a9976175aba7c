"""Writes kubernetes.json and trainer.json from two packages: kubernetes-validate 1.37.0 and kubeflow-trainer-api 2.3.0.

Only what the kinds that we print can contain is kept, without descriptions, status and the sources of volumes that we do not use.
A field that is not known is an error in what is kept."""

import json
import re
from importlib.resources import files
from pathlib import Path

from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob
from kubeflow_trainer_api.models.trainer_v1alpha1_training_runtime import TrainerV1alpha1TrainingRuntime

# Whole types that no manifest of ours has.
UNUSED = {
    "io.k8s.api.core.v1.Affinity",
    "io.k8s.api.core.v1.EphemeralContainer",
    "io.k8s.api.core.v1.Lifecycle",
    "io.k8s.api.core.v1.Probe",
    "io.k8s.apimachinery.pkg.apis.meta.v1.ManagedFieldsEntry",
    "io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference",
}
VOLUMES = {"name", "emptyDir", "secret", "configMap", "persistentVolumeClaim"}


def kinds(schema: dict) -> list[str]:
    kind = schema.get("type", [])
    return [k for k in (kind if isinstance(kind, list) else [kind]) if k != "null"]


def trimmed(schema: dict, name_of: dict[str, str]) -> dict:
    """A schema in the few words that the test's validator knows."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return {"$ref": f"#/definitions/{name_of.get(name, name)}"}
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            left = [s for s in schema[choice] if s.get("type") != "null"]
            return trimmed(left[0], name_of) if len(left) == 1 else {"type": [k for s in left for k in kinds(s)]}
    kept: dict = {}
    if kinds(schema):
        kept["type"] = kinds(schema) if len(kinds(schema)) > 1 else kinds(schema)[0]
    if "enum" in schema:
        kept["enum"] = [value for value in schema["enum"] if value is not None]
    if "items" in schema:
        kept["items"] = trimmed(schema["items"], name_of)
    if "properties" in schema:
        kept["properties"] = {
            key: trimmed(value, name_of) for key, value in schema["properties"].items() if key != "status" or "type" in value
        }
        kept["required"] = schema.get("required", [])
        kept["additionalProperties"] = False
    elif isinstance(schema.get("additionalProperties"), dict):
        kept["additionalProperties"] = trimmed(schema["additionalProperties"], name_of)
    return kept


def referred(schemas: dict) -> list[str]:
    return re.findall(r'"\$ref": "#/definitions/([^"]+)"', json.dumps(schemas))


def reachable(definitions: dict, roots: list[str]) -> dict:
    found: dict = {}
    ahead = list(roots)
    while ahead:
        name = ahead.pop()
        if name in found or name not in definitions:
            continue
        found[name] = definitions[name]
        ahead += referred(found[name])
    return dict(sorted(found.items()))


def without(definitions: dict, names: set[str]) -> dict:
    def is_kept(value: dict) -> bool:
        return not names.intersection(referred(value))

    for schema in definitions.values():
        if "properties" in schema:
            schema["properties"] = {k: v for k, v in schema["properties"].items() if is_kept(v)}
    return definitions


def write(name: str, source: str, definitions: dict) -> None:
    whole = {"source": source, "licence": "Apache-2.0", "definitions": definitions}
    lines = json.dumps(whole, sort_keys=True, indent=0).replace("\n", "")
    lines = re.sub(r'("(?:io\.k8s|Jobset|Trainer)[A-Za-z0-9.]+": \{"(?:additionalProperties|properties|type))', r"\n\1", lines)
    (Path(__file__).parent / name).write_text(lines + "\n")


def main() -> None:
    everything = json.loads(
        (files("kubernetes_validate") / "kubernetes-json-schema/v1.37.0-local-strict/_definitions.json").read_text()
    )["$defs"]
    kubernetes = without({name: trimmed(schema, {}) for name, schema in everything.items()}, UNUSED)
    volume = kubernetes["io.k8s.api.core.v1.Volume"]
    volume["properties"] = {k: v for k, v in volume["properties"].items() if k in VOLUMES}
    pascal = {"".join(part[:1].upper() + part[1:] for part in re.split(r"[.-]", name)): name for name in kubernetes}
    models = [JobsetV1alpha2JobSet, TrainerV1alpha1TrainJob, TrainerV1alpha1TrainingRuntime]
    trainer: dict = {}
    for model in models:
        schema = model.model_json_schema()
        trainer |= {model.__name__: schema} | schema.pop("$defs", {})
    unknown = [n for n in trainer if n.startswith("IoK8s") and n not in pascal]
    assert not unknown, unknown
    trainer = {n: trimmed(s, pascal) for n, s in trainer.items() if not n.startswith("IoK8s")}
    trainer = reachable(trainer, [model.__name__ for model in models])
    patches = {name for name in trainer if name.endswith("Patch")}
    trainer = reachable(without(trainer, patches), [model.__name__ for model in models])
    roots = ["io.k8s.api.batch.v1.Job", "io.k8s.api.core.v1.Service", "io.k8s.api.core.v1.Secret"]
    roots += referred(trainer)
    write("kubernetes.json", "Kubernetes 1.37.0, through PyPI kubernetes-validate 1.37.0", reachable(kubernetes, roots))
    write("trainer.json", "Kubeflow Trainer 2.3.0 with its JobSet, through PyPI kubeflow-trainer-api 2.3.0", trainer)


if __name__ == "__main__":
    main()
