//! A pass over several threads: its texts are dealt to lanes of one thread each, which never wait for each
//! other. A pass that cannot be dealt evenly (one long text) is computed by all threads together, some texts at a time.

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::{EmbedError, expect::OpenError};

/// Tokens computed in one go by a lane: enough rows for full speed, few enough that intermediate results stay
/// in the processor's caches.
const LANE_TOKENS: usize = 512;

/// How much more than its share the busiest lane may have. All threads on one text after another take a ninth longer than
/// lanes of equal loads (64 to 512 tokens, two threads): waiting for the busiest lane is to cost no more.
const UNEVEN_MAX: f64 = 1.15;

/// Thread pools of our own: the number of threads is ours and does not follow the machine's processors, as the
/// libraries' default pools would.
pub struct Lanes {
    single: Vec<ThreadPool>,
    wide: ThreadPool,
}

impl Lanes {
    /// Pools for `threads` threads (at least 1).
    ///
    /// # Errors
    /// The system refuses that many threads.
    pub fn new(threads: usize) -> Result<Self, rayon::ThreadPoolBuildError> {
        let pool = |threads: usize| {
            let name = move |index| format!("embed-{threads}-{index}");
            ThreadPoolBuilder::new().num_threads(threads).thread_name(name).build()
        };
        let threads = threads.max(1);
        Ok(Self { single: (0..threads).map(|_| pool(1)).collect::<Result<_, _>>()?, wide: pool(threads)? })
    }

    /// As [`Lanes::new`], with what to set when the system refuses.
    ///
    /// # Errors
    /// It does.
    pub fn open(threads: usize) -> Result<Self, OpenError> {
        Self::new(threads).map_err(|error| OpenError::Setting {
            key: "model.threads",
            value: threads.to_string(),
            what: format!(
                "the system refuses so many threads ({error}); set model.threads to a smaller number"
            ),
        })
    }

    /// Runs `work` in the pool of all threads.
    pub fn on_all<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.wide.install(work)
    }

    /// Runs `forward` over parts of `batch` and returns its results in order.
    ///
    /// # Errors
    /// That of a part, which is said of the whole pass.
    pub fn run<'t, F, T>(&self, batch: &[&'t [u32]], forward: F) -> Result<Vec<T>, EmbedError>
    where
        F: Fn(&[&'t [u32]]) -> Result<Vec<T>, EmbedError> + Sync,
        T: Send,
    {
        let lengths: Vec<usize> = batch.iter().map(|ids| ids.len()).collect();
        let Some(hands) = deal(&lengths, self.single.len()) else {
            let order: Vec<usize> = (0..batch.len()).collect();
            let together = parts(&order, &lengths, LANE_TOKENS * self.single.len()).into_iter();
            let each = together.map(|part| forward(&batch[part[0]..][..part.len()]));
            let results: Result<Vec<Vec<T>>, EmbedError> = self.wide.install(|| each.collect());
            return Ok(results.map_err(|error| error.of(batch.len()))?.into_iter().flatten().collect());
        };
        let work = |hand: &[usize]| -> Result<Vec<T>, EmbedError> {
            let mut done = Vec::with_capacity(hand.len());
            for part in parts(hand, &lengths, LANE_TOKENS) {
                let texts: Vec<&[u32]> = part.iter().map(|&index| batch[index]).collect();
                done.extend(forward(&texts)?);
            }
            Ok(done)
        };
        let results: Vec<Result<Vec<T>, EmbedError>> = std::thread::scope(|scope| {
            let work = &work;
            let mut running = Vec::with_capacity(hands.len());
            for (pool, hand) in self.single.iter().zip(&hands) {
                running.push(scope.spawn(move || pool.install(|| work(hand))));
            }
            running
                .into_iter()
                .map(|lane| lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        let mut places: Vec<Option<T>> = batch.iter().map(|_| None).collect();
        for (hand, result) in hands.iter().zip(results) {
            for (&index, one) in hand.iter().zip(result.map_err(|error| error.of(batch.len()))?) {
                places[index] = Some(one);
            }
        }
        let all: Option<Vec<T>> = places.into_iter().collect();
        all.ok_or_else(|| EmbedError::Failed("a lane returned fewer results than texts".into()))
    }
}

/// Indices of the texts for each lane, longest first, or `None` when the busiest lane would have so much more
/// than its share that all threads on one text after another are quicker.
fn deal(lengths: &[usize], lanes: usize) -> Option<Vec<Vec<usize>>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(lengths[index]));
    let mut hands = vec![(0, Vec::new()); lanes];
    for index in order {
        let hand = hands.iter_mut().min_by_key(|(load, _)| *load)?;
        hand.0 += lengths[index];
        hand.1.push(index);
    }
    let most = hands.iter().map(|(load, _)| *load).max()?;
    let share = lengths.iter().sum::<usize>() as f64 / lanes as f64;
    (lanes == 1 || most as f64 <= UNEVEN_MAX * share)
        .then(|| hands.into_iter().map(|(_, hand)| hand).collect())
}

/// A hand in parts of at most `most` tokens, or of one text.
pub fn parts<'a>(hand: &'a [usize], lengths: &[usize], most: usize) -> Vec<&'a [usize]> {
    let mut parts = Vec::new();
    let (mut start, mut tokens) = (0, 0);
    for (i, &index) in hand.iter().enumerate() {
        if i > start && tokens + lengths[index] > most {
            parts.push(&hand[start..i]);
            (start, tokens) = (i, 0);
        }
        tokens += lengths[index];
    }
    if start < hand.len() {
        parts.push(&hand[start..]);
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_text_comes_back_in_its_place(
            lengths in prop::collection::vec(1_usize..900, 0..40),
            threads in 1_usize..4,
        ) {
            let texts: Vec<Vec<u32>> = lengths.iter().enumerate().map(|(i, &n)| vec![u32::try_from(i).unwrap(); n]).collect();
            let batch: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
            let first = |part: &[&[u32]]| Ok(part.iter().map(|ids| vec![ids[0] as f32]).collect());
            let vectors = Lanes::new(threads).unwrap().run(&batch, first).unwrap();
            let expected: Vec<Vec<f32>> = (0..lengths.len()).map(|i| vec![i as f32]).collect();
            prop_assert_eq!(vectors, expected);
        }
    }

    #[test]
    fn one_long_text_is_not_dealt() {
        assert!(deal(&[8_000], 2).is_none());
        assert!(deal(&[8_000, 20, 30], 2).is_none());
        assert_eq!(deal(&[50, 100, 60], 2), Some(vec![vec![1], vec![2, 0]]));
    }

    #[test]
    fn an_error_of_one_lane_is_the_error_of_the_pass() {
        let bad = |part: &[&[u32]]| match part.iter().find(|ids| ids[0] == 0) {
            Some(_) => Err(EmbedError::OutOfMemory { texts: part.len(), message: "no".into() }),
            _ => Ok(part.iter().map(|_| vec![1.0]).collect()),
        };
        // One text for each lane, and what is not dealt.
        for batch in [vec![&[1_u32][..], &[0]], vec![&[1_u32; 9][..], &[0]]] {
            let error = Lanes::new(2).unwrap().run(&batch, bad).unwrap_err();
            assert_eq!(error, EmbedError::OutOfMemory { texts: 2, message: "no".into() });
        }
    }
}
