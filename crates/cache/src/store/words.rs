//! What the tables of the index keep, in as few bits as there can be: see `index` for what they are and why that is enough.
//!
//! Minutes are counted from 1970 and wrap after two years: half of that lies before a minute, half of it ahead.

const fn mask(bits: u32) -> u32 {
    (1 << bits) - 1
}

/// Largest number of a segment.
pub const LAST_SEGMENT: u32 = mask(22);
/// Largest number of a scope.
pub const LAST_SCOPE: u32 = mask(18);
/// Largest number of a minute: they wrap after two years.
pub const LAST_MINUTE: u32 = mask(20);
/// Largest place of a record in a segment.
pub const LAST_PLACE: u64 = (mask(22) as u64) * 64;

/// Minutes between two minutes that wrap. A time that seems to lie ahead is now.
pub const fn minutes_since(then: u32, now: u32) -> u32 {
    let passed = now.wrapping_sub(then) & LAST_MINUTE;
    if passed > LAST_MINUTE / 2 { 0 } else { passed }
}

/// How far a minute lies ahead: so long a lease still holds. Nothing for one that has passed.
pub const fn minutes_ahead(until: u32, now: u32) -> u32 {
    let ahead = until.wrapping_sub(now) & LAST_MINUTE;
    if ahead > LAST_MINUTE / 2 { 0 } else { ahead }
}

/// What a table keeps.
pub trait Word: Copy + Default + PartialEq + std::fmt::Debug + Send {
    /// Bits of the print.
    const PRINT: u32;
    /// Bytes on disk.
    const BYTES: usize;
    /// Its print.
    fn print(self) -> u64;
    /// With this print.
    fn with_print(self, print: u64) -> Self;
    /// Whether both name the same record.
    fn same_place(self, other: Self) -> bool;
    /// Appends it as it is on disk.
    fn write(self, to: &mut Vec<u8>);
    /// From so many bytes; a free place when there are fewer.
    fn read(bytes: &[u8]) -> Self;
}

/// A name: where its record lies, how long it is, when it was last used, the number of its scope, and whether the record
/// carries the content. In five words, since eight bytes that have to lie at a multiple of eight would cost four more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slot([u32; 5]);

impl Slot {
    const CARRIES: u32 = 1 << 31;

    /// Packs. `at` and `len` are multiples of 64.
    pub fn new(segment: u32, at: u64, len: u64, minute: u32, scope: u32) -> Self {
        let field = |value: u32, bits: u32, shift: u32| u128::from(value & mask(bits)) << shift;
        let (at, len) = ((at / 64) as u32, (len / 64) as u32);
        Self::default().with_packed(
            field(segment, 22, 0)
                | field(at, 22, 22)
                | field(len, 15, 44)
                | field(minute, 20, 59)
                | field(scope, 18, 79),
        )
    }

    /// The first four words.
    fn packed(self) -> u128 {
        let [a, b, c, d, _] = self.0.map(u128::from);
        a | b << 32 | c << 64 | d << 96
    }

    fn with_packed(self, packed: u128) -> Self {
        let word = |number: u32| (packed >> (32 * number)) as u32;
        Self([word(0), word(1), word(2), word(3), self.0[4]])
    }

    fn field(self, bits: u32, shift: u32) -> u32 {
        (self.packed() >> shift) as u32 & mask(bits)
    }

    /// Number of the segment.
    pub fn segment(self) -> u32 {
        self.field(22, 0)
    }

    /// Place in it.
    pub fn at(self) -> u64 {
        u64::from(self.field(22, 22)) * 64
    }

    /// Bytes of the record.
    #[expect(clippy::len_without_is_empty, reason = "a record is never empty")]
    pub fn len(self) -> u64 {
        u64::from(self.field(15, 44)) * 64
    }

    /// Minute of the last use.
    pub fn minute(self) -> u32 {
        self.field(20, 59)
    }

    /// Number of the scope.
    pub fn scope(self) -> u32 {
        self.field(18, 79)
    }

    /// Whether the record is known to carry its content. A link may lose what it stands for.
    pub const fn carries(self) -> bool {
        self.0[4] & Self::CARRIES != 0
    }

    /// The record carries its content, or it is not known.
    pub const fn carrying(mut self, carries: bool) -> Self {
        self.0[4] = self.0[4] & !Self::CARRIES | if carries { Self::CARRIES } else { 0 };
        self
    }

    /// At another place.
    pub fn moved(self, segment: u32, at: u64) -> Self {
        let moved = Self::new(segment, at, self.len(), self.minute(), self.scope());
        moved.with_print(self.print()).carrying(self.carries())
    }

    /// Used at this minute.
    pub fn used(self, minute: u32) -> Self {
        let kept = self.packed() & !(u128::from(LAST_MINUTE) << 59);
        self.with_packed(kept | u128::from(minute & LAST_MINUTE) << 59)
    }
}

impl Word for Slot {
    const PRINT: u32 = 62;
    const BYTES: usize = 20;

    fn print(self) -> u64 {
        u64::from(self.0[3] >> 1) | u64::from(self.0[4] & !Self::CARRIES) << 31
    }

    fn with_print(mut self, print: u64) -> Self {
        self.0[3] = self.0[3] & 1 | (print as u32) << 1;
        self.0[4] = self.0[4] & Self::CARRIES | (print >> 31) as u32 & !Self::CARRIES;
        self
    }

    fn same_place(self, other: Self) -> bool {
        let low = |slot: Self| u64::from(slot.0[0]) | u64::from(slot.0[1]) << 32;
        (low(self) ^ low(other)) & ((1 << 44) - 1) == 0
    }

    fn write(self, to: &mut Vec<u8>) {
        self.0.iter().for_each(|word| to.extend_from_slice(&word.to_le_bytes()));
    }

    fn read(bytes: &[u8]) -> Self {
        let mut slot = Self::default();
        if bytes.len() == Self::BYTES {
            for (word, bytes) in slot.0.iter_mut().zip(bytes.chunks_exact(4)) {
                *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
        }
        slot
    }
}

/// A content that names can share: where the record lies that carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spot(u64);

impl Spot {
    const LINKED: u64 = 1 << 44;
    const USED: u64 = 1 << 45;

    /// Packs. `at` is a multiple of 64.
    pub fn new(segment: u32, at: u64) -> Self {
        Self(u64::from(segment & mask(22)) | ((at / 64) & u64::from(mask(22))) << 22)
    }

    /// Number of the segment.
    pub const fn segment(self) -> u32 {
        self.0 as u32 & mask(22)
    }

    /// Place in it.
    pub const fn at(self) -> u64 {
        (self.0 >> 22 & mask(22) as u64) * 64
    }

    /// Another name links to it.
    pub const fn linked(self) -> bool {
        self.0 & Self::LINKED != 0
    }

    /// It was read or written through a link since it was last moved.
    pub const fn used(self) -> bool {
        self.0 & Self::USED != 0
    }

    /// At another place, not used there yet.
    pub fn moved(self, segment: u32, at: u64) -> Self {
        let linked = self.0 & Self::LINKED;
        Self(Self::new(segment, at).0 | linked).with_print(self.print())
    }

    /// At another place, used there as it was here.
    pub(super) fn shifted(self, segment: u32, at: u64) -> Self {
        let kept = self.0 & (Self::LINKED | Self::USED);
        Self(Self::new(segment, at).0 | kept).with_print(self.print())
    }

    /// Linked to, and used so.
    pub(super) const fn through_a_link(self) -> Self {
        Self(self.0 | Self::LINKED | Self::USED)
    }
}

impl Word for Spot {
    const PRINT: u32 = 18;
    const BYTES: usize = 8;

    fn print(self) -> u64 {
        self.0 >> 46
    }

    fn with_print(self, print: u64) -> Self {
        Self(self.0 & ((1 << 46) - 1) | print << 46)
    }

    fn same_place(self, other: Self) -> bool {
        (self.0 ^ other.0) & ((1 << 44) - 1) == 0
    }

    fn write(self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.0.to_le_bytes());
    }

    fn read(bytes: &[u8]) -> Self {
        Self(bytes.try_into().map_or(0, u64::from_le_bytes))
    }
}
