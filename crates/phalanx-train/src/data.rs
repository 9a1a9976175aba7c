//! Data for examples: handwritten digits in the IDX format, and texts as numbers of words.

use flate2::read::GzDecoder;
use phalanx_graph::{Tensor, TensorError};
use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Longer files are refused rather than read: examples have a few megabytes.
const MOST_BYTES: u64 = 256 << 20;

#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("cannot read {}: {why}", file.display())]
    Io { file: PathBuf, why: io::Error },
    #[error("{} is not what an IDX file of {wanted} is", file.display())]
    Format { file: PathBuf, wanted: &'static str },
    #[error("{}: {n_images} images, {n_labels} labels", folder.display())]
    Count { folder: PathBuf, n_images: usize, n_labels: usize },
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Images `[n, 1, height, width]` of numbers around zero, and their labels `[n]`.
#[derive(Clone, Debug)]
pub struct Digits {
    dims: [usize; 4],
    pixels: Vec<f32>,
    labels: Vec<i64>,
}

impl Digits {
    /// `part` is `train` or `t10k`, as the files are named.
    pub fn read(folder: &Path, part: &str) -> Result<Digits, DataError> {
        let images = folder.join(format!("{part}-images-idx3-ubyte.gz"));
        let labels = folder.join(format!("{part}-labels-idx1-ubyte.gz"));
        let (dims, pixels) = idx(&images, 3, "images")?;
        let (counts, numbers) = idx(&labels, 1, "labels")?;
        if dims[0] != counts[0] {
            let (n_images, n_labels) = (dims[0], counts[0]);
            return Err(DataError::Count { folder: folder.to_path_buf(), n_images, n_labels });
        }
        Ok(Digits {
            dims: [dims[0], 1, dims[1], dims[2]],
            pixels: pixels.iter().map(|&p| (f32::from(p) / 255.0 - 0.1307) / 0.3081).collect(),
            labels: numbers.iter().map(|&n| i64::from(n)).collect(),
        })
    }

    pub fn len(&self) -> usize {
        self.dims[0]
    }

    pub fn is_empty(&self) -> bool {
        self.dims[0] == 0
    }

    /// These of them, in this order.
    pub fn pick(&self, which: &[usize]) -> Result<(Tensor, Tensor), DataError> {
        self.pick_moved(which, |_| (0, 0))
    }

    /// The same, each moved down and to the right by so many pixels: a network shall not learn where digits stand.
    pub fn pick_moved(
        &self,
        which: &[usize],
        by: impl Fn(usize) -> (isize, isize),
    ) -> Result<(Tensor, Tensor), DataError> {
        let [_, _, height, width] = self.dims;
        let size = height * width;
        // The corners of digits are background.
        let blank = self.pixels.first().copied().unwrap_or_default();
        let mut pixels = Vec::with_capacity(which.len() * size);
        for &i in which {
            let image = &self.pixels[i * size..][..size];
            let (down, right) = by(i);
            for at in 0..size {
                let (y, x) = ((at / width) as isize - down, (at % width) as isize - right);
                let inside = (0..height as isize).contains(&y) && (0..width as isize).contains(&x);
                pixels.push(if inside { image[y as usize * width + x as usize] } else { blank });
            }
        }
        let labels: Vec<i64> = which.iter().map(|&i| self.labels[i]).collect();
        let [_, c, h, w] = self.dims;
        Ok((Tensor::new(&[which.len(), c, h, w], &pixels)?, Tensor::new(&[which.len()], &labels)?))
    }

    pub fn all(&self) -> Result<(Tensor, Tensor), DataError> {
        self.pick(&(0..self.len()).collect::<Vec<_>>())
    }
}

fn unpacked(file: &Path) -> Result<Vec<u8>, DataError> {
    let failed = |why| DataError::Io { file: file.to_path_buf(), why };
    let mut bytes = Vec::new();
    let packed = File::open(file).map_err(failed)?;
    GzDecoder::new(packed).take(MOST_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Dimensions and bytes of an IDX file.
fn idx(file: &Path, n_dims: usize, wanted: &'static str) -> Result<(Vec<usize>, Vec<u8>), DataError> {
    parse(&unpacked(file)?, n_dims).ok_or_else(|| DataError::Format { file: file.to_path_buf(), wanted })
}

fn parse(bytes: &[u8], n_dims: usize) -> Option<(Vec<usize>, Vec<u8>)> {
    const BYTES: u8 = 8;
    let (magic, rest) = bytes.split_at_checked(4)?;
    let (sizes, data) = rest.split_at_checked(4 * n_dims)?;
    let dims: Vec<usize> =
        sizes.chunks_exact(4).map(|d| u32::from_be_bytes([d[0], d[1], d[2], d[3]]) as usize).collect();
    let n = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
    (magic == [0, 0, BYTES, n_dims as u8] && data.len() == n).then(|| (dims, data.to_vec()))
}

/// A text as numbers of its most frequent words, the most frequent being 1; all others are 0.
pub fn words(file: &Path, n_words: usize) -> Result<Vec<i64>, DataError> {
    let text = String::from_utf8_lossy(&unpacked(file)?).to_lowercase();
    Ok(numbered(&text, n_words))
}

fn numbered(text: &str, n_words: usize) -> Vec<i64> {
    let words = || text.split(|c: char| !c.is_alphabetic() && c != '\'').filter(|w| !w.is_empty());
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    words().for_each(|w| *counts.entry(w).or_default() += 1);
    let mut order: Vec<(&str, usize)> = counts.into_iter().collect();
    order.sort_by_key(|&(_, n)| std::cmp::Reverse(n));
    let numbers: HashMap<&str, i64> =
        order.iter().take(n_words.saturating_sub(1)).zip(1..).map(|(&(w, _), i)| (w, i)).collect();
    words().map(|w| numbers.get(w).copied().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idx_files_are_read_and_nonsense_is_refused() {
        let good = [0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9];
        assert_eq!(parse(&good, 1), Some((vec![3], vec![7, 8, 9])));
        for cut in 0..good.len() {
            assert_eq!(parse(&good[..cut], 1), None, "{cut}");
        }
        assert_eq!(parse(&good, 3), None);
        assert_eq!(parse(&[0, 0, 8, 2, 255, 255, 255, 255, 255, 255, 255, 255], 2), None, "huge");
    }

    #[test]
    fn frequent_words_have_small_numbers() {
        assert_eq!(numbered("the cat, the dog's the cat", 3), [1, 2, 1, 0, 1, 2]);
    }

    #[test]
    fn the_digits_of_the_project_are_there() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data");
        let digits = Digits::read(&folder, "t10k").unwrap();
        let (images, labels) = digits.pick(&[3, 1]).unwrap();
        assert_eq!((digits.len(), images.dims(), labels.dims()), (1000, &[2, 1, 28, 28][..], &[2][..]));
        let (moved, _) = digits.pick_moved(&[3], |_| (1, 2)).unwrap();
        let (images, moved) = (images.data::<f32>().unwrap(), moved.data::<f32>().unwrap());
        assert_eq!(moved[29 * 14 + 28 + 2], images[29 * 14]);
        assert!(matches!(Digits::read(&folder, "none"), Err(DataError::Io { .. })));
    }
}
