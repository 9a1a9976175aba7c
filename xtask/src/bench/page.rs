//! The page of results.

use super::table::{Score, Table};

pub fn write(
    command: &str,
    machine: &[(&'static str, String)],
    notes: &[String],
    tables: &[Table],
) -> String {
    let mut page = format!(
        "# Benchmarks\n\nWritten by `{command}`. Do not edit: run it again.\n\n\
         A call's time is its slowest rank's, started after a barrier. Each number is the median over the rounds of each \
         round's median; rounds of all programs were interleaved. The limits inside a host are \
         what plain copies and plain additions of f32 reach in the same run, as many threads at once as there are ranks \
         (`benches/peers/memory.c`). The limit of large messages between hosts is two opposite TCP streams that move as \
         many bytes (`benches/peers/tcpstreams.c`); at small ones its sleeping threads are slower than ranks that poll. Hand-made is an allreduce in C, from private memory and from memory that the ranks \
         share (`benches/peers/handmade.c`), or over one TCP connection (`benches/peers/handmade_tcp.c`). It is not a limit. A ratio is our \
         time over the other's; below one is faster.\n\n"
    );
    page.push_str(&measured(machine, notes, tables));
    page
}

/// The page of training steps.
pub fn torch(command: &str, machine: &[(&'static str, String)], tables: &[Table]) -> String {
    let page = format!(
        "# Training steps with PyTorch\n\nWritten by `{command}`. Do not edit: run it again.\n\n\
         A step is zero_grad, forward, backward with the exchange of gradients, and the optimizer's step; its time is that of the slowest rank. Each \
         number is the median over the turns of each turn's median; turns of all programs were interleaved, after ten steps that do not count (in the first eight, ranks compare their parameters, and again in the 16th, 32nd, 64th and every 100th). DDP is torch's \
         DistributedDataParallel over Gloo with `gradient_as_bucket_view`, started by torchrun. `phalanx run` sets THP_MEM_ALLOC_ENABLE=1 for its ranks, so \
         that torch takes large tensors in huge pages; here every program has that setting, and one column shows DDP without it. \"Two apart\" are two ranks that compute at the same time and exchange nothing: what two processes take \
         from each other on this machine, whatever reduces their gradients. Efficiency is the time of one process alone over that of the optimizer; \"apart / optimizer\" is the part of a step that \
         is not the exchange. Extra memory is the most that a rank has during five steps beyond one process alone; pages that two ranks share \
         count as half for each, files do not count (`benches/torch/steps.py`).\n\n"
    );
    page + &measured(machine, &[], tables)
}

/// The page of TensorFlow and JAX.
pub fn frameworks(command: &str, machine: &[(&'static str, String)], tables: &[Table]) -> String {
    let page = format!(
        "# TensorFlow, Keras and JAX\n\nWritten by `{command}`. Do not edit: run it again.\n\n\
         Two ranks on one host, one thread for the parts of an operation on every side. Operations take turns in one world and begin after a small allreduce; \
         a time is the median of the slowest rank. \"Of 100\" is a function with 100 operations one after the other, divided by 100; a call of a function \
         with one operation has all of the framework's time for a call in it. So the page shows that of a function without a collective, too, and \"the rest\", what the collective adds to it, as a multiple of \
         `phalanx.numpy`'s time: TensorFlow's goal is shown for a whole call and for the rest, JAX's for a whole call. A step of `fit` is the time between the ends of two \
         batches of 32 examples a rank. MultiWorkerMirroredStrategy does not run with Keras 3, so it has tf_keras; ours is measured with both. \"Apart\" are two ranks \
         that compute at the same time and exchange nothing. The peer of JAX is `jax.distributed` with Gloo's collectives for the CPU, a batch with its examples split over both processes. \
         Every number is the median over the rounds; rounds of all programs were interleaved (`benches/frameworks/`).\n\n"
    );
    page + &measured(machine, &[], tables)
}

/// The page of sessions.
pub fn session(command: &str, machine: &[(&'static str, String)], tables: &[Table]) -> String {
    let page = format!(
        "# Sessions and checkpoints\n\nWritten by `{command}`. Do not edit: run it again.\n\n\
         The bare loop and a session with every hook take turns, block by block, in one world \
         (`crates/phalanx-train/examples/session_bench.rs`); what a session adds is the median difference of two blocks that follow each other. The session may save, write events and answer \
         SIGTERM; no save falls into the time that is measured. A checkpoint is seen when a follower has opened it; the time begins when its manifest \
         is written.\n\nSaves of two ranks are those of `benches/session/saves.py`: a session, `torch.save` on rank 0 and \
         `torch.distributed.checkpoint` over Gloo on loopback save the same tensors in turns; each time ends when the last rank is done and the files are on the disk. A \
         session saves while training goes on: what training waits for is a table of its own. Files of one process are those of \
         `crates/phalanx-checkpoint/examples/checkpoint_bench.rs`, interleaved with plain copies, writes and reads of the same bytes. Every \
         number is the median over the rounds.\n\n"
    );
    page + &measured(machine, &[], tables)
}

/// The page of static programs.
pub fn graph(command: &str, machine: &[(&'static str, String)], tables: &[Table]) -> String {
    let page = format!(
        "# The graph against PyTorch\n\nWritten by `{command}`. Do not edit: run it again.\n\n\
         Both sides run one thread and take turns case by case; time is what the thread spent on a core, of each case the best median of all \
         rounds counts. Products are named `sgemm_MxNxK`, with `nt` and `tn` for a transposed operand; convolutions `conv_BxCxHxOxK`, with \
         stride and groups behind where they are not 1, and `deconv_BxCxHxOxKxS` for transposed ones, forward and both gradients; `hsigmoid_NxWxC` and `nce_NxWxCxK` \
         are training steps over C classes, the latter with K random ones; the rest are whole training steps with SGD (`crates/phalanx-graph/examples/graph_bench.rs`, `benches/graph/peer.py`). \
         Memory is the peak of resident memory over three steps beyond what was there before the first. Replicas are measured by \
         `crates/phalanx-graph/examples/graph_scaling.rs`, once a round; of each the best of nine turns. Reduce and AllReduce on several ranks take turns in one world, \
         nine blocks of ten steps a round; medians of blocks, and of the ratios of blocks that follow each other (`crates/phalanx-train/examples/reduce_bench.rs`).\n\n"
    );
    page + &measured(machine, &[], tables)
}

/// The page of engines.
pub fn engines(
    command: &str,
    machine: &[(&'static str, String)],
    notes: &[String],
    tables: &[Table],
) -> String {
    let page = format!(
        "# Engines of clusters, and encryption\n\nWritten by `{command}`. Do not edit: run it again.\n\n\
         Two hosts are two network namespaces of one machine, joined by a virtual cable, each with a core of its own where there are two; the remote shell \
         enters a namespace, so a login costs nothing. A start is the whole command, from its beginning until it has ended: ranks that meet, say so and leave, beside `true` \
         under the same launcher. 256 ranks are compared with `MPI_Init` and `MPI_Finalize` (`benches/peers/mpi_init.c`), everybody on the same cores. Allreduce is measured as on \
         [Collectives](benchmarks.md): `phalanx bench` and `benches/peers/mpi_bench.c`, whose ranks share memory inside a host and use TCP between hosts, as ours do. \
         Bytes are what both ends of the cable have sent, for each call. Every number is the median over the rounds; rounds of everybody were interleaved.\n\n"
    );
    page + &measured(machine, notes, tables)
}

/// The page of shapes.
pub fn topology(
    command: &str,
    machine: &[(&'static str, String)],
    notes: &[String],
    tables: &[Table],
) -> String {
    let page = format!(
        "# Shapes and networks\n\nWritten by `{command}`. Do not edit: run it again.\n\n\
         Hosts are network namespaces of one machine; all ranks share its cores. A: 3 hosts of 4 ranks on a switch, token buckets of 200 Mbit/s at both ends of every \
         cable. B: 2 racks of 3 hosts of 2 ranks, 200 Mbit/s for each host, 100 Mbit/s between the racks. C: as A, without limits. Everybody uses plain TCP between hosts and may share memory \
         inside them; nothing is encrypted. A call's time is its slowest rank's, started after a barrier; every call counts, the first, whose result is checked, too: up to 20 of a size in a round, and \
         none begins after a second (`phalanx bench --calls`, `benches/peers/mpi_bench.c`, `benches/peers/torch_bench.py`). Rounds of everybody were interleaved; each number is the median over the rounds \
         of each round's median. Ranks are dealt to the hosts in turn by `mpirun --map-by node`. What interfaces sent includes TCP's headers and acknowledgements, and what ranks say to each other \
         when they meet. A share of the line rate counts payload only: TCP's headers, 66 bytes of 1,514, are part of what a token bucket lets through. Simulated times are those of `phalanx simulate` with the costs that `phalanx doctor` measured \
         between the hosts.\n\n"
    );
    page + &measured(machine, notes, tables)
}

/// The page of tables on servers.
pub fn parallax(
    command: &str,
    machine: &[(&'static str, String)],
    notes: &[String],
    tables: &[Table],
) -> String {
    let page = format!(
        "# Tables on servers between hosts\n\nWritten by `{command}`. Do not edit: run it again.\n\n\
         Hosts are network namespaces joined by a bridge; tbf limits each host's link in both directions. Every worker trains the same model \
         (`crates/phalanx-train/examples/parallax_bench.rs`): two tables of 64 numbers a row, in a step of a worker 1,280 log-uniform row numbers of \
         each unless a table says otherwise, 1,024 candidates more of the second, and 0.33 million dense numbers. Bytes are those of the hosts' interfaces, in and out, of a long run less a short one. \"Gathered\" is \
         the allgather of raw rows. Formulas take the rows that were really asked for, with 4 bytes for each number of a row (8 where rows are gathered); they know nothing of \
         headers and acknowledgements. DDP is torch's DistributedDataParallel over Gloo with the same model (`benches/parallax/peer.py`): it merges a \
         worker's rows before it gathers them, so it is also the de-duplicated allgather. \"Servers over torch's RPC\" has a shard of both tables in the first worker of \
         each host, from which every worker pulls by itself, and DDP for the dense layers (`benches/parallax/rpc_peer.py`). A time is the median of rank 0's steps; rounds of all ways were \
         interleaved, and medians over the rounds are told; DDP, RPC and dense tables are in the first round only.\n\n"
    );
    page + &measured(machine, notes, tables)
}

/// Where it was measured, and what.
fn measured(machine: &[(&'static str, String)], notes: &[String], tables: &[Table]) -> String {
    let mut page = "| measured on | |\n|---|---|\n".to_string();
    for (name, value) in machine {
        page.push_str(&format!("| {name} | {value} |\n"));
    }
    let score = tables
        .iter()
        .map(Table::score)
        .fold(Score::default(), |all, one| Score { met: all.met + one.met, of: all.of + one.of });
    page.push_str(&format!("\nGoals met: {} of {}.\n", score.met, score.of));
    for note in notes {
        page.push_str(&format!("\nNote: {}\n", note.lines().next().unwrap_or_default()));
    }
    for table in tables {
        page.push_str(&format!("\n## {}\n\n{}", table.title, table.text()));
    }
    page
}
