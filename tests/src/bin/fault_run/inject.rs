//! Lets a fault happen, and says whether it did.

use std::time::{Duration, Instant};

use mcp_idempotent_tests::kit::relay::Cut;
use tokio::task::block_in_place;

use crate::{
    caller::at,
    random::Random,
    row::{Fault, Full, Mode},
    server::Secrets,
    site::{Base, PATIENCE, SHORT_LEASE, Site},
};

/// What is set before the calls are made.
pub(crate) async fn prepare(site: &mut Site, random: &mut Random) {
    let fault = site.row.fault;
    match fault {
        Fault::FailOver(_) | Fault::LosePower(_) | Fault::SlowFlush => {
            site.postgres().prepare(fault).await;
        }
        Fault::Deploy => {
            // Back to the first version, after an earlier round.
            at(&site.places[0]).kill().await;
            site.start_again().await;
        }
        Fault::KillAtCommit => site.relay().cut_next_commit(Cut::Hold),
        Fault::LoseCommitAnswer => site.relay().cut_next_commit(Cut::AfterTheServer),
        Fault::LoseCommit => {
            let cut = random.one_of(&[Cut::BeforeTheServer, Cut::OnTheClientsSideOnly]);
            site.relay().cut_next_commit(cut);
        }
        Fault::SilenceDatabase => site.relay().fall_silent_at(1 + random.below(60)),
        _ => {}
    }
}

/// Calls stand where they should, or the relay is set. Says whether the fault happened.
pub(crate) async fn happen(
    site: &mut Site,
    random: &mut Random,
    others: impl AsyncFnOnce(),
    let_go: impl Fn(),
) -> bool {
    let first = at(&site.places[0]);
    match site.row.fault {
        Fault::Racers | Fault::TwoSecrets | Fault::Within(_) => true,
        Fault::Kill(_) => {
            let died = first.kill().await;
            site.start_again().await;
            died
        }
        Fault::Deploy => {
            let died = first.kill().await;
            site.start_again_with(Secrets::Both).await;
            died
        }
        Fault::HangUp => {
            let ended = first.hang_up().await;
            site.start_again().await;
            ended
        }
        Fault::KillAtCommit => {
            let held = until(|| site.relay().has_cut()).await;
            let died = first.kill().await;
            site.relay().let_go();
            site.start_again().await;
            held && died
        }
        Fault::Freeze => {
            let stands_still = first.freeze().await;
            if site.row.mode == Mode::Transaction {
                tokio::time::sleep(Duration::from_secs(1)).await;
            } else {
                tokio::time::sleep(SHORT_LEASE).await;
                // They find out that the lease has ended.
                others().await;
            }
            first.go_on().await;
            stands_still
        }
        Fault::EndSessions => site.end_sessions().await > 0,
        Fault::StopCluster => {
            site.restart_cluster();
            true
        }
        Fault::FailOver(_) => site.postgres().fail_over().await,
        Fault::LosePower(_) => block_in_place(|| site.postgres().lose_power()),
        Fault::Fill(Full::Effect | Full::Record) => {
            let postgres = site.postgres();
            let before = postgres.refusals();
            block_in_place(|| postgres.disk().fill());
            let_go();
            let was_full = until(|| postgres.refusals() > before).await;
            // A lease may end meanwhile, or not.
            let longer = random.one_of(&[PATIENCE / 2, SHORT_LEASE + PATIENCE / 2]);
            tokio::time::sleep(longer).await;
            postgres.make_room().await;
            was_full
        }
        Fault::Fill(Full::Log) => {
            let postgres = site.postgres();
            let was_full = postgres.fill_for_log().await;
            tokio::time::sleep(PATIENCE / 4).await;
            postgres.make_room().await;
            was_full
        }
        Fault::SlowFlush => {
            let_go();
            site.postgres().is_slow()
        }
        Fault::StallDisk => {
            let postgres = site.postgres();
            let stalled = block_in_place(|| postgres.disk().stall());
            let_go();
            let mut waiting = 0;
            let end = Instant::now() + PATIENCE + PATIENCE / 2;
            while Instant::now() < end {
                waiting = postgres.waiting_for_log().await.max(waiting);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            block_in_place(|| drop(stalled));
            waiting > 0
        }
        Fault::KillPooler => {
            let pooler = site.postgres().pooler.as_mut();
            let pooler = pooler.expect("this row has a pooler");
            block_in_place(|| {
                let died = pooler.kill();
                pooler.start_again();
                died
            })
        }
        Fault::CutDatabase => {
            let cut = site.relay().cut_clients() > 0;
            site.relay().come_up();
            cut
        }
        Fault::SilenceDatabase => {
            // The server finds out by itself, and then the database does.
            tokio::time::sleep(2 * PATIENCE).await;
            let fell_silent = site.relay().has_fallen_silent();
            site.relay().come_up();
            fell_silent
        }
        Fault::LoseCommitAnswer | Fault::LoseCommit => {
            let cut = until(|| site.relay().has_cut()).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
            site.relay().come_up();
            cut
        }
        Fault::CutCallers => first
            .callers
            .as_ref()
            .is_some_and(|it| it.cut_clients() > 0),
        Fault::SilenceCallers => first.callers.as_ref().is_some_and(|it| it.silence() > 0),
        Fault::ExhaustPool => {
            tokio::time::sleep(PATIENCE + PATIENCE / 2).await;
            true
        }
        Fault::KillRedis => {
            let Base::Redis(redis) = &mut site.base else {
                return false;
            };
            block_in_place(|| {
                redis.kill();
                redis.start_again();
            });
            true
        }
        Fault::FreezeRedis => {
            let Base::Redis(redis) = &site.base else {
                return false;
            };
            redis.pause();
            tokio::time::sleep(PATIENCE + PATIENCE / 2).await;
            redis.go_on();
            true
        }
    }
}

/// Looks again and again, for a bounded time.
pub(crate) async fn until(mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        if condition() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    condition()
}
