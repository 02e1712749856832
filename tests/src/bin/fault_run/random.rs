//! Numbers that look random, and are the same for the same seed.

#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// For one round of one row.
    pub(crate) fn new(seed: u64, row: &str, round: u64) -> Self {
        // FNV-1a, and a few steps for the bits to spread.
        let bytes = row.bytes().chain(round.to_le_bytes());
        let hashed = bytes.fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut random = Self(hashed | 1);
        for _ in 0..8 {
            random.next();
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).expect("a small number");
        usize::try_from(self.next() % bound).expect("a small number")
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}
