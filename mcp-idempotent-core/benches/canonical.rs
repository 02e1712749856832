//! Canonical arguments and identity: what each call pays before anything else happens.

mod call;

use call::steady;
use criterion::{BenchmarkId, Criterion, Throughput};
use mcp_idempotent_core::{Application, CanonicalArguments, IdempotencyKey, Identity, Scope};
use serde_json::{Map, Value, json};

/// Arguments of about so many bytes: rows of a table, as a tool that takes a batch has them.
fn arguments(bytes: usize) -> Map<String, Value> {
    let row = |number: usize| {
        json!({
            "id": number, "name": "Ærøskøbing \"harbour\"\n", "price": 12.75, "tags": ["a", "b"],
            "ok": true, "note": null,
        })
    };
    let size = row(100).to_string().len();
    let rows = (0..bytes / size).map(row).collect();
    Map::from_iter([("rows".to_owned(), Value::Array(rows))])
}

fn canonicalisation(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("canonical arguments");
    for (name, arguments) in [
        ("5 fields", call::ARGUMENTS.clone()),
        ("1 kB", arguments(1_000)),
        ("100 kB", arguments(100_000)),
    ] {
        let bytes = serde_json::to_string(&arguments).map_or(0, |text| text.len());
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_with_input(BenchmarkId::from_parameter(name), &arguments, |b, input| {
            b.iter_custom(|iterations| {
                steady(iterations, || CanonicalArguments::new(Some(input), &[]))
            });
        });
    }
    group.finish();
}

fn identity(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("identity");
    let application = Application::new("benchmarks");
    let scope = Scope::new("benchmarks");
    let key = IdempotencyKey::new("5a1bb4e2-6f4c-4c0e-9a34-0a1f3c1f6a55").expect("a valid key");
    for (name, key) in [("explicit key", Some(&key)), ("derived key", None)] {
        let arguments = CanonicalArguments::new(Some(&call::ARGUMENTS), &[]);
        group.bench_function(name, |b| {
            b.iter_custom(|iterations| {
                steady(iterations, || {
                    Identity::new(&application, &scope, key, "transfer", &arguments, None)
                })
            });
        });
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    canonicalisation(&mut criterion);
    identity(&mut criterion);
    criterion.final_summary();
}
