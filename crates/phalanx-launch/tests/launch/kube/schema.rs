//! Checks documents against schemas: the part of JSON Schema that the stored ones use. A field that is not known is an error.

use super::{Manifest, printed};
use serde_json::{Value, json};

const STORED: [&str; 2] =
    [include_str!("../../data/kube/kubernetes.json"), include_str!("../../data/kube/trainer.json")];

const ROOTS: [(&str, &str, &str); 6] = [
    ("batch/v1", "Job", "io.k8s.api.batch.v1.Job"),
    ("v1", "Service", "io.k8s.api.core.v1.Service"),
    ("v1", "Secret", "io.k8s.api.core.v1.Secret"),
    ("jobset.x-k8s.io/v1alpha2", "JobSet", "JobsetV1alpha2JobSet"),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob", "TrainerV1alpha1TrainJob"),
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime", "TrainerV1alpha1TrainingRuntime"),
];

pub struct Schemas(Vec<Value>);

impl Schemas {
    pub fn stored() -> Schemas {
        Schemas(STORED.map(|text| serde_json::from_str(text).expect("the schemas are JSON")).into())
    }

    fn definition(&self, name: &str) -> Option<&Value> {
        self.0.iter().find_map(|schemas| schemas["definitions"].get(name))
    }

    /// Everything that is wrong with a document.
    pub fn complaints(&self, document: &Value) -> Vec<String> {
        let mut found = Vec::new();
        match ROOTS.iter().find(|(api, kind, _)| document["apiVersion"] == *api && document["kind"] == *kind)
        {
            Some((_, kind, name)) => {
                self.check(document, &json!({ "$ref": format!("#/definitions/{name}") }), kind, &mut found);
            }
            None => found.push(format!("{}: {} is not known", document["apiVersion"], document["kind"])),
        }
        found
    }

    fn check(&self, value: &Value, schema: &Value, at: &str, found: &mut Vec<String>) {
        if let Some(name) = schema["$ref"].as_str() {
            let name = name.trim_start_matches("#/definitions/");
            let definition = self.definition(name).unwrap_or_else(|| panic!("{name} is not stored"));
            return self.check(value, definition, at, found);
        }
        let kind = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(n) if n.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let takes = |wanted: &Value| wanted == kind || (wanted == "number" && kind == "integer");
        let is_wanted = match &schema["type"] {
            Value::Null => true,
            Value::Array(any) => any.iter().any(takes),
            one => takes(one),
        };
        if !is_wanted {
            return found.push(format!("{at} is of type {kind}, not {}", schema["type"]));
        }
        if schema["enum"].as_array().is_some_and(|any| !any.contains(value)) {
            found.push(format!("{at} is {value}, not one of {}", schema["enum"]));
        }
        for item in value.as_array().into_iter().flatten() {
            self.check(item, &schema["items"], &format!("{at}[]"), found);
        }
        let Some(fields) = value.as_object() else { return };
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !fields.contains_key(name) {
                found.push(format!("{at}.{name} is missing"));
            }
        }
        for (name, value) in fields {
            let known = schema["properties"].get(name).unwrap_or(&schema["additionalProperties"]);
            match known {
                Value::Bool(false) => found.push(format!("{at}.{name} is not known")),
                known => self.check(value, known, &format!("{at}.{name}"), found),
            }
        }
    }
}

/// Every way to ask for a manifest.
fn every_way() -> Vec<Vec<&'static str>> {
    let flags: [&[&str]; 4] = [
        &["--nodes", "1"],
        &["--nodes", "4", "--slots", "8"],
        &["--nodes", "2", "--secret", "key.of-lab", "--namespace", "lab", "--name", "resnet-7"],
        &[
            "--nodes",
            "12",
            "--cpu",
            "500m",
            "--memory",
            "16Gi",
            "--shm",
            "1Gi",
            "--gpus",
            "8",
            "--restarts",
            "3",
            "--fs-group",
            "none",
            "--env",
            "A=$(B) $$ é",
            "--env",
            "PHALANX_LOG=info",
            "--start-timeout",
            "60",
        ],
    ];
    let kinds = ["job", "jobset", "trainjob"];
    let whole = |kind, flags: &[&'static str]| {
        [
            &[kind, "--image", "registry.example:5000/train:1"],
            flags,
            &["--", "python", "train.py", "--lr", "1e-3"],
        ]
        .concat()
    };
    kinds.iter().flat_map(|kind| flags.map(|flags| whole(*kind, flags))).collect()
}

#[test]
fn every_manifest_is_one_that_the_schemas_take() {
    let schemas = Schemas::stored();
    for args in every_way() {
        for document in Manifest::of(&args).0 {
            assert_eq!(schemas.complaints(&document), [""; 0], "{args:?}");
        }
    }
}

/// All ways to say one field wrong, and where.
fn spoiled(value: &Value, spoil: &dyn Fn(&mut serde_json::Map<String, Value>, &str)) -> Vec<Value> {
    let mut all = Vec::new();
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields {
                let mut changed = fields.clone();
                spoil(&mut changed, name);
                all.push(Value::Object(changed));
                for inner in spoiled(inner, spoil) {
                    let mut changed = fields.clone();
                    changed.insert(name.clone(), inner);
                    all.push(Value::Object(changed));
                }
            }
        }
        Value::Array(items) => {
            for (i, inner) in items.iter().enumerate() {
                for inner in spoiled(inner, spoil) {
                    let mut changed = items.clone();
                    changed[i] = inner;
                    all.push(Value::Array(changed));
                }
            }
        }
        _ => {}
    }
    all
}

#[test]
fn a_field_that_is_misspelt_or_of_another_type_is_refused() {
    let schemas = Schemas::stored();
    let misspell = |fields: &mut serde_json::Map<String, Value>, name: &str| {
        let value = fields.remove(name).expect("the field is there");
        fields.insert(format!("{name}x"), value);
    };
    let retype = |fields: &mut serde_json::Map<String, Value>, name: &str| {
        let other = if fields[name].is_array() { json!({}) } else { json!([[]]) };
        fields.insert(name.into(), other);
    };
    // Their names are free: labels, keys of a secret, resources.
    let free = ["labels", "selector", "stringData", "requests", "limits"];
    let is_free = |text: &str| free.iter().any(|word| text.contains(&format!(".{word}.")));
    for args in every_way() {
        for document in Manifest::of(&args).0 {
            let n_fields = spoiled(&document, &|_, _| {}).len();
            assert!(n_fields > 8, "{document}");
            for wrong in spoiled(&document, &retype) {
                assert!(!schemas.complaints(&wrong).is_empty(), "{wrong}");
            }
            let refused =
                spoiled(&document, &misspell).into_iter().filter(|d| !schemas.complaints(d).is_empty());
            let n_free = paths(&document, "").iter().filter(|path| is_free(path)).count();
            assert_eq!(refused.count() + n_free, n_fields, "{document}");
        }
    }
}

/// The path of each field.
fn paths(value: &Value, at: &str) -> Vec<String> {
    match value {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, value)| {
                let path = format!("{at}.{name}");
                let inner = paths(value, &path);
                std::iter::once(path).chain(inner)
            })
            .collect(),
        Value::Array(items) => items.iter().flat_map(|item| paths(item, at)).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn every_manifest_is_the_same_for_a_reader_of_another_kind() {
    // PyYAML reads YAML 1.1, as kubectl does: there a plain `on` is no text.
    let script = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))";
    let has_yaml = std::process::Command::new("python3").args(["-c", "import yaml"]).output();
    if !has_yaml.is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: Python has no module yaml here; the Debian package python3-yaml has it");
        return;
    }
    for kind in ["job", "jobset", "trainjob"] {
        let words = ["on", "0x10", "1:30", "~", "two\nlines", "é", "$(A) $$", "a: b", "- c", "#d", "'", "\\"];
        let text = printed(
            &[&[kind, "--image", "i", "--nodes", "2", "--env", "A=off", "--", "sh"], &words[..]].concat(),
        );
        let dir = crate::launch::support::TempDir::new();
        let file = std::fs::File::open(dir.write("manifest", &text)).expect("it was written");
        let read = std::process::Command::new("python3")
            .args(["-c", script])
            .stdin(file)
            .output()
            .expect("Python runs");
        let other: Vec<Value> = serde_json::from_slice(&read.stdout).expect("JSON");
        assert_eq!(other, Manifest::read(&text).0);
    }
}
