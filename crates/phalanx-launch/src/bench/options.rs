//! What to measure: the command line as a list of cases.

use crate::cli::HostArgs;
use clap::{Args, ValueEnum};
use phalanx_collective::plan::step::CollectiveOp;
use phalanx_core::{DType, ReduceOp};

/// Each call starts after a barrier; its time is that of the slowest rank. A size is the whole vector for allreduce and
/// broadcast, and the full buffer (ranks x block) for allgather, reduce_scatter and alltoall, as in nccl-tests.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  phalanx bench -np 2\n  phalanx bench -np 2 --op allreduce --dtype f32 --sizes 4,1K,16M --buffers private,arena --json\n  mpirun -np 4 --oversubscribe phalanx bench --op broadcast"
)]
pub struct BenchArgs {
    /// Number of ranks to start; also -np. Ignored if a launcher has already started the ranks
    #[arg(short = 'n', long = "np", value_name = "N", default_value = "2")]
    #[arg(value_parser = crate::cli::n_ranks, allow_negative_numbers = true)]
    pub np: u32,

    /// Collectives, or "all"
    #[arg(
        long,
        visible_alias = "op",
        value_name = "OP,...",
        default_value = "allreduce",
        value_delimiter = ','
    )]
    pub ops: Vec<String>,

    /// Element types, or "all"
    #[arg(
        long,
        visible_alias = "dtypes",
        value_name = "TYPE,...",
        default_value = "f32",
        value_delimiter = ','
    )]
    pub dtype: Vec<String>,

    /// The reduction
    #[arg(long, value_name = "OP", default_value = "sum")]
    pub reduce: String,

    /// Bytes, with K, M or G; rounded up to whole elements
    #[arg(
        long,
        value_name = "BYTES,...",
        default_value = "4,64,1K,16K,64K,256K,1M,4M,16M,64M",
        value_delimiter = ','
    )]
    pub sizes: Vec<String>,

    /// Memory of the tensors: private (ordinary memory) or arena (shared memory from Communicator::alloc)
    #[arg(long, value_enum, value_name = "KIND,...", default_value = "private", value_delimiter = ',')]
    pub buffers: Vec<Buffers>,

    /// Seconds to measure each line
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    pub seconds: f64,

    /// At most this many calls of each line, all of them timed: the first, which is checked, too. For slow networks
    #[arg(long, value_name = "N")]
    pub calls: Option<u32>,

    /// Also what a call sends over links: bytes and messages along each tier, and the bytes that leave the fullest host
    #[arg(long)]
    pub traffic: bool,

    /// Measure DDL's AllReduceN instead: the tensors of ResNet-50 below 64 KB in one call, and in one call each
    #[arg(long, conflicts_with_all = ["engine", "ddl"])]
    pub fused: bool,

    /// Measure DDL's AllReduce instead, of f32, with the options of DDL_OPTIONS; of --calls (32) of each size the last quarter counts
    #[arg(long, conflicts_with_all = ["engine", "ops", "dtype", "buffers", "reduce", "traffic"])]
    pub ddl: bool,

    /// Measure the engine instead: the tensors of ResNet-50 one by one, one small tensor, and a first step, which is negotiated
    #[arg(long)]
    pub engine: bool,

    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,

    /// Do not give each rank a core of its own
    #[arg(long)]
    pub no_bind: bool,

    #[command(flatten)]
    pub hosts: HostArgs,

    /// Network interface, as for `phalanx run`
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Buffers {
    Private,
    Arena,
}

impl Buffers {
    pub fn name(self) -> &'static str {
        match self {
            Buffers::Private => "private",
            Buffers::Arena => "arena",
        }
    }
}

/// One line of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    pub op: CollectiveOp,
    pub dtype: DType,
    pub reduce: ReduceOp,
    pub bytes: u64,
    pub buffers: Buffers,
}

impl BenchArgs {
    pub fn cases(&self) -> Result<Vec<Case>, String> {
        if !(self.seconds > 0.0 && self.seconds <= 3600.0) {
            return Err(format!("--seconds {} is not between 0 and 3600", self.seconds));
        }
        if self.calls == Some(0) {
            return Err("--calls 0: nothing would be measured; write --calls 1 or more".into());
        }
        let ops: Vec<CollectiveOp> = match self.ops.as_slice() {
            [all] if all == "all" => CollectiveOp::ALL.to_vec(),
            names => {
                names.iter().map(|n| n.parse().map_err(|e| format!("{e}"))).collect::<Result<_, String>>()?
            }
        };
        let dtypes: Vec<DType> = match self.dtype.as_slice() {
            [all] if all == "all" => DType::ALL.to_vec(),
            names => {
                names.iter().map(|n| n.parse().map_err(|e| format!("{e}"))).collect::<Result<_, String>>()?
            }
        };
        let reduce: ReduceOp = self.reduce.parse().map_err(|e| format!("{e}"))?;
        let sizes = self.sizes.iter().map(|s| bytes(s)).collect::<Result<Vec<_>, _>>()?;
        let mut cases = Vec::new();
        for &op in &ops {
            for &dtype in &dtypes {
                reduce.check(dtype, 1.0, 1.0).map_err(|e| e.to_string())?;
                for &buffers in &self.buffers {
                    for &bytes in if op == CollectiveOp::Barrier { &[0][..] } else { &sizes } {
                        let bytes = bytes.next_multiple_of(dtype.size() as u64);
                        cases.push(Case { op, dtype, reduce, bytes, buffers });
                    }
                }
            }
        }
        Ok(cases)
    }

    /// A message for each requested size that is rounded up.
    pub fn roundings(&self, cases: &[Case]) -> Vec<String> {
        let mut dtypes: Vec<DType> = Vec::new();
        for case in cases.iter().filter(|c| c.op != CollectiveOp::Barrier) {
            if !dtypes.contains(&case.dtype) {
                dtypes.push(case.dtype);
            }
        }
        let mut said = Vec::new();
        for dtype in dtypes {
            let size = dtype.size() as u64;
            for asked in self.sizes.iter().filter_map(|s| bytes(s).ok()).filter(|b| !b.is_multiple_of(size)) {
                let measured = asked.next_multiple_of(size);
                said.push(format!(
                    "{asked} bytes are not a whole number of {dtype} ({size} bytes each); measuring {measured} bytes"
                ));
            }
        }
        said
    }
}

impl Case {
    /// Bytes that one rank's tensors take, at most: the full vector and what it is sent to or comes from.
    pub fn memory_bytes(&self, n_ranks: u32) -> u64 {
        let share = self.bytes / u64::from(n_ranks.max(1));
        match self.op {
            CollectiveOp::Alltoall => self.bytes.saturating_mul(2),
            CollectiveOp::Allreduce
            | CollectiveOp::Broadcast
            | CollectiveOp::Reduce
            | CollectiveOp::Barrier => self.bytes,
            CollectiveOp::Allgather
            | CollectiveOp::ReduceScatter
            | CollectiveOp::Gather
            | CollectiveOp::Scatter => self.bytes.saturating_add(share),
        }
    }
}

/// A number of bytes such as 4, 1K, 16M or 2G.
pub fn bytes(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.trim().to_ascii_uppercase().trim_end_matches("IB").trim_end_matches('B') {
        t if t.ends_with('K') => (t[..t.len() - 1].to_string(), 1 << 10),
        t if t.ends_with('M') => (t[..t.len() - 1].to_string(), 1 << 20),
        t if t.ends_with('G') => (t[..t.len() - 1].to_string(), 1 << 30),
        t => (t.to_string(), 1),
    };
    let number = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).filter(|b| *b <= 1 << 40);
    number.ok_or_else(|| format!("{text:?} is not a size such as 4, 1K, 16M or 2G"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }

    #[test]
    fn sizes_are_whole_elements_and_roundings_are_said() {
        let args = Line::parse_from([
            "bench",
            "--sizes",
            "3,8",
            "--dtype",
            "f32,u8,f64",
            "--op",
            "allgather,barrier",
        ])
        .args;
        let cases = args.cases().unwrap();
        let of = |dtype| cases.iter().filter(|c| c.dtype == dtype).map(|c| c.bytes).collect::<Vec<_>>();
        assert_eq!(
            [of(DType::F32), of(DType::U8), of(DType::F64)],
            [vec![4, 8, 0], vec![3, 8, 0], vec![8, 8, 0]]
        );
        assert_eq!(
            args.roundings(&cases),
            [
                "3 bytes are not a whole number of f32 (4 bytes each); measuring 4 bytes",
                "3 bytes are not a whole number of f64 (8 bytes each); measuring 8 bytes"
            ]
        );
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(
            ["4", "1K", "16m", "2GiB", "64KB"].map(|t| bytes(t).unwrap()),
            [4, 1 << 10, 16 << 20, 2 << 30, 64 << 10]
        );
        for bad in ["", "x", "1T", "-1", "99999999G"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }
}
