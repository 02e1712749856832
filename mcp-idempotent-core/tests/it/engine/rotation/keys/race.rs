//! Several keys for one call, at the same moment.

use super::*;

const ROUNDS: usize = 6;
const KEYS: usize = 3;

/// Several keys for one call, at once in two processes.
async fn one_effect_a_call<S: Store, M: Mode<S>>(
    store: impl Fn() -> S,
    mode: M,
    rotated_keys: RotatedKeys,
) {
    let ran = Arc::default();
    let process = || {
        Arc::new(Side::alone(store(), mode, &ran, |policy| {
            policy.rotated_keys = rotated_keys;
        }))
    };
    let processes = [process(), process()];
    for round in 0..ROUNDS {
        let mut racing = JoinSet::new();
        for (key, process) in (0..KEYS).flat_map(|key| processes.iter().map(move |it| (key, it))) {
            let process = Arc::clone(process);
            racing.spawn(async move {
                let key = format!("{round}-{key}");
                let answer = process.asked(&key, round).await;
                (key, answer)
            });
        }
        let answers = racing.join_all().await;
        assert_eq!(processes[0].effects().await, round + 1);
        let executed: Vec<_> = answers
            .iter()
            .filter(|(_, answer)| matches!(answer, Outcome::Own(_)))
            .collect();
        let [(winner, Outcome::Own(result))] = executed[..] else {
            panic!("one executes: {answers:?}");
        };
        for (key, _) in &answers {
            for process in &processes {
                let retry = process.asked(key, round).await;
                if key == winner || rotated_keys == RotatedKeys::Join {
                    assert_eq!(retry, replayed(result));
                } else {
                    assert_eq!(retry, ROTATED);
                }
            }
        }
        for (key, answer) in &answers {
            let is_result = matches!(answer, Outcome::Own(it) | Outcome::Replayed(it) | Outcome::Joined(it) if it == result);
            if key == winner || rotated_keys == RotatedKeys::Join {
                assert!(is_result, "{answer:?}");
            } else {
                assert_eq!(*answer, ROTATED);
            }
        }
        assert_eq!(processes[0].effects().await, round + 1);
    }
}

#[tokio::test]
async fn racing_keys_of_one_call_have_one_effect_in_memory() {
    for rotated_keys in [RotatedKeys::Refuse, RotatedKeys::Join] {
        let store = Faulty::default();
        one_effect_a_call(|| store.clone(), Leases, rotated_keys).await;
    }
}

#[tokio::test]
async fn racing_keys_of_one_call_have_one_effect_in_sqlite() {
    for rotated_keys in [RotatedKeys::Refuse, RotatedKeys::Join] {
        let file = sides::SqliteFile::new().await;
        one_effect_a_call(|| file.store(), Leases, rotated_keys).await;
        let file = sides::SqliteFile::new().await;
        one_effect_a_call(|| file.store(), Transactions, rotated_keys).await;
    }
}

#[tokio::test]
async fn racing_keys_of_one_call_have_one_effect_in_postgres() {
    for rotated_keys in [RotatedKeys::Refuse, RotatedKeys::Join] {
        let database = crate::postgres::database::Database::new().await;
        let store = || database.another_process_at_home(4);
        one_effect_a_call(store, Leases, rotated_keys).await;
        let database = crate::postgres::database::Database::new().await;
        let store = || database.another_process_at_home(4);
        one_effect_a_call(store, Transactions, rotated_keys).await;
    }
}
