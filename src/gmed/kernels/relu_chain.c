/* Linear layers and ReLU under cross-entropy: both passes, a look-ahead and a step, each as one call.
 *
 * Compiled at run time by relu_chain_compiled.py, which has the plain counterpart (relu_chain.py); REAL is float or
 * double. Rows are contiguous. The gradient of layer l is stored as factors: its input a[l] and the gradient of its
 * output d[l], a row for each example.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES (64 / (int)sizeof(REAL))
#define UNROLL _Pragma("GCC unroll 8")
#define INLINE static inline __attribute__((always_inline))

typedef REAL Lanes __attribute__((vector_size(64), aligned(sizeof(REAL)), may_alias));
typedef REAL Half __attribute__((vector_size(32)));
typedef REAL Quarter __attribute__((vector_size(16)));

typedef struct {
  int64_t layers;
  const int64_t *widths; /* of the input and of every layer */
  REAL *const *weights;
  REAL *const *biases; /* NULL where there is none */
  const int64_t *rectified;
} Chain;

INLINE REAL total(Lanes v) {
  union { Lanes v; Half h[2]; } a = {v};
  union { Half v; Quarter h[2]; } b = {a.h[0] + a.h[1]};
  Quarter c = b.h[0] + b.h[1];
  REAL sum = 0;
  UNROLL for (int i = 0; i < LANES / 4; i++) sum += c[i];
  return sum;
}

static __attribute__((noinline)) REAL dot(const REAL *a, const REAL *b, long from, long to) {
  Lanes sums = {0};
  for (; from + LANES <= to; from += LANES) sums += *(const Lanes *)(a + from) * *(const Lanes *)(b + from);
  REAL sum = total(sums);
  for (; from < to; from++) sum += a[from] * b[from];
  return sum;
}

/* out[r, c] = x[r] . w[c] + b[c], for a tile of rows and columns */
INLINE void dots(const int rows, const int columns, const REAL *x, const REAL *w, const REAL *b, REAL *out, long k,
                 long m) {
  Lanes sums[5][4];
  UNROLL for (int r = 0; r < rows; r++) UNROLL for (int c = 0; c < columns; c++) sums[r][c] = (Lanes){0};
  long j = 0;
  for (; j + LANES <= k; j += LANES) {
    Lanes loaded[4];
    UNROLL for (int c = 0; c < columns; c++) loaded[c] = *(const Lanes *)(w + c * k + j);
    UNROLL for (int r = 0; r < rows; r++) {
      Lanes value = *(const Lanes *)(x + r * k + j);
      UNROLL for (int c = 0; c < columns; c++) sums[r][c] += value * loaded[c];
    }
  }
  UNROLL for (int r = 0; r < rows; r++) UNROLL for (int c = 0; c < columns; c++) {
    REAL sum = total(sums[r][c]);
    if (j < k) sum += dot(x + r * k, w + c * k, j, k);
    out[r * m + c] = sum + (b ? b[c] : 0);
  }
}

/* out = x wT + b: n rows of k, m rows of k */
static void product(const REAL *x, const REAL *w, const REAL *b, REAL *out, long n, long k, long m) {
  long c = 0;
  for (; c + 4 <= m; c += 4) {
    long r = 0;
    for (; r + 5 <= n; r += 5) dots(5, 4, x + r * k, w + c * k, b ? b + c : 0, out + r * m + c, k, m);
    for (; r < n; r++) dots(1, 4, x + r * k, w + c * k, b ? b + c : 0, out + r * m + c, k, m);
  }
  for (; c < m; c++)
    for (long r = 0; r < n; r++) dots(1, 1, x + r * k, w + c * k, b ? b + c : 0, out + r * m + c, k, m);
}

/* out[p] += sum over q of scale s[p, q] rows[q], for a tile; s[p, q] is at s[p sp + q sq] */
INLINE void add_tile(const int count_p, const int count_q, REAL *out, const REAL *rows, const REAL *s, long sp, long sq,
                     REAL scale, long k) {
  REAL factors[5][5];
  UNROLL for (int p = 0; p < count_p; p++) UNROLL for (int q = 0; q < count_q; q++)
    factors[p][q] = scale * s[p * sp + q * sq];
  long j = 0;
  for (; j + LANES <= k; j += LANES) {
    Lanes sums[5];
    UNROLL for (int p = 0; p < count_p; p++) sums[p] = *(Lanes *)(out + p * k + j);
    UNROLL for (int q = 0; q < count_q; q++) {
      Lanes row = *(const Lanes *)(rows + q * k + j);
      UNROLL for (int p = 0; p < count_p; p++) sums[p] += factors[p][q] * row;
    }
    UNROLL for (int p = 0; p < count_p; p++) *(Lanes *)(out + p * k + j) = sums[p];
  }
  for (; j < k; j++)
    for (int p = 0; p < count_p; p++)
      for (int q = 0; q < count_q; q++) out[p * k + j] += factors[p][q] * rows[q * k + j];
}

static void add_rows(REAL *out, const REAL *rows, const REAL *s, long np, long nq, long sp, long sq, REAL scale,
                     long k) {
  long p = 0;
  for (; p + 5 <= np; p += 5) {
    long q = 0;
    for (; q + 5 <= nq; q += 5) add_tile(5, 5, out + p * k, rows + q * k, s + p * sp + q * sq, sp, sq, scale, k);
    for (; q < nq; q++) add_tile(5, 1, out + p * k, rows + q * k, s + p * sp + q * sq, sp, sq, scale, k);
  }
  for (; p < np; p++) {
    long q = 0;
    for (; q + 5 <= nq; q += 5) add_tile(1, 5, out + p * k, rows + q * k, s + p * sp + q * sq, sp, sq, scale, k);
    for (; q < nq; q++) add_tile(1, 1, out + p * k, rows + q * k, s + p * sp + q * sq, sp, sq, scale, k);
  }
}

/* as torch: what is not a number stays so, in both passes */
static void rectify(REAL *z, long count) {
  for (long i = 0; i < count; i++) z[i] = z[i] < 0 ? 0 : z[i];
}

static void rectify_back(REAL *grad, const REAL *output, long count) {
  for (long i = 0; i < count; i++) grad[i] = output[i] <= 0 ? 0 : grad[i];
}

/* The mean loss of n rows, and its gradient times scale; -100 marks rows that do not count. Returns whether labels
 * are valid. */
static int cross_entropy(const REAL *output, const int64_t *y, REAL *grad, long n, long classes, REAL scale,
                         REAL *loss) {
  long counted = 0;
  for (long r = 0; r < n; r++) {
    if (y[r] != -100 && (y[r] < 0 || y[r] >= classes)) return 0;
    counted += y[r] != -100;
  }
  REAL sum = 0;
  for (long r = 0; r < n; r++) {
    const REAL *z = output + r * classes;
    REAL *g = grad + r * classes, largest = z[0], norm = 0;
    for (long c = 1; c < classes; c++) largest = z[c] > largest ? z[c] : largest;
    for (long c = 0; c < classes; c++) norm += g[c] = (REAL)exp(z[c] - largest);
    if (y[r] != -100) sum += (REAL)log(norm) + largest - z[y[r]];
    for (long c = 0; c < classes; c++) g[c] = y[r] == -100 ? 0 : scale * (g[c] / norm - (c == y[r])) / counted;
  }
  *loss = sum / counted;
  return 1;
}

static void forward(const Chain *chain, const REAL *x, REAL *const *outputs, long n) {
  for (int64_t l = 0; l < chain->layers; l++) {
    const long k = chain->widths[l], m = chain->widths[l + 1];
    product(l ? outputs[l - 1] : x, chain->weights[l], chain->biases[l], outputs[l], n, k, m);
    if (chain->rectified[l]) rectify(outputs[l], n * m);
  }
}

/* grads[l - 1] = grads[l] weights[l], before the ReLU of layer l - 1 */
static void backward(const Chain *chain, int64_t l, REAL *const *outputs, REAL *const *grads, long n) {
  const long k = chain->widths[l], m = chain->widths[l + 1];
  memset(grads[l - 1], 0, n * k * sizeof(REAL));
  add_rows(grads[l - 1], chain->weights[l], grads[l], n, m, m, 1, 1, k);
}

/* The sum of the mean losses of the first rows and of the others, and the gradients of all outputs. */
int gradient(const Chain *chain, const REAL *x, const int64_t *y, REAL *const *outputs, REAL *const *grads, long n,
             long first, REAL *loss) {
  const int64_t last = chain->layers - 1;
  const long classes = chain->widths[last + 1];
  REAL other = 0;
  forward(chain, x, outputs, n);
  if (!cross_entropy(outputs[last], y, grads[last], first, classes, 1, loss)) return 0;
  if (first < n && !cross_entropy(outputs[last] + first * classes, y + first, grads[last] + first * classes, n - first,
                                  classes, 1, &other))
    return 0;
  *loss += other;
  for (int64_t l = last; l >= 0; l--) {
    if (chain->rectified[l]) rectify_back(grads[l], outputs[l], n * chain->widths[l + 1]);
    if (l) backward(chain, l, outputs, grads, n);
  }
  return 1;
}

/* Take a step of this size against a gradient of n examples. */
void sgd_step(const Chain *chain, REAL *const *a, REAL *const *d, long n, REAL step) {
  for (int64_t l = 0; l < chain->layers; l++) {
    const long k = chain->widths[l], m = chain->widths[l + 1];
    add_rows(chain->weights[l], a[l], d[l], m, n, 1, m, -step, k);
    if (chain->biases[l])
      for (long r = 0; r < n; r++)
        for (long c = 0; c < m; c++) chain->biases[l][c] -= step * d[l][r * m + c];
  }
}

/* Return a bound of the entries of a gradient of n examples. */
double bound(const Chain *chain, REAL *const *a, REAL *const *d, long n) {
  double largest = 0;
  for (int64_t l = 0; l < chain->layers; l++) {
    double inputs = 0, grads = 0;
    REAL sum_a = 0, sum_d = 0;
    for (long r = 0; r < n; r++, inputs += sum_a, grads += sum_d) {
      const REAL *row_a = a[l] + r * chain->widths[l], *row_d = d[l] + r * chain->widths[l + 1];
      sum_a = dot(row_a, row_a, 0, chain->widths[l]);
      sum_d = dot(row_d, row_d, 0, chain->widths[l + 1]);
    }
    const double here = (sqrt(inputs) + n) * sqrt(grads);
    if (!(here <= largest)) largest = here; /* also if it is not a number */
    if (isnan(largest)) return largest;
  }
  return largest;
}

/* The outputs for m rows at the parameters, then those after a step against a gradient of n examples (2 m rows). */
void forward_ahead(const Chain *chain, const REAL *x, REAL *const *a, REAL *const *d, REAL *const *outputs, REAL *gram,
                   long m, long n, REAL step) {
  for (int64_t l = 0; l < chain->layers; l++) {
    const long k = chain->widths[l], o = chain->widths[l + 1];
    REAL *z = outputs[l];
    if (l == 0) {
      product(x, chain->weights[0], chain->biases[0], z, m, k, o);
      memcpy(z + m * o, z, m * o * sizeof(REAL));
    } else {
      product(outputs[l - 1], chain->weights[l], chain->biases[l], z, 2 * m, k, o);
    }
    product(l ? outputs[l - 1] + m * k : x, a[l], 0, gram, m, k, n);
    if (chain->biases[l])
      for (long i = 0; i < m * n; i++) gram[i] += 1;
    add_rows(z + m * o, d[l], gram, m, n, n, 1, -step, o);
    if (chain->rectified[l]) rectify(z, 2 * m * o);
  }
}

/* grad_x of before loss(x) + after loss(x) one step ahead; without a gradient (n = 0) only of the first. */
int input_gradient(const Chain *chain, const REAL *x, const int64_t *y, REAL *const *a, REAL *const *d,
                   REAL *const *outputs, REAL *const *grads, REAL *gram, REAL *grad_x, long m, long n, REAL step,
                   REAL before, REAL after) {
  const int64_t last = chain->layers - 1;
  const long classes = chain->widths[last + 1], rows = n ? 2 * m : m, inputs = chain->widths[0];
  REAL loss;
  if (n)
    forward_ahead(chain, x, a, d, outputs, gram, m, n, step);
  else
    forward(chain, x, outputs, m);
  if (!cross_entropy(outputs[last], y, grads[last], m, classes, before, &loss)) return 0;
  if (n) cross_entropy(outputs[last] + m * classes, y, grads[last] + m * classes, m, classes, after, &loss);
  for (int64_t l = last; l >= 0; l--) {
    const long k = chain->widths[l], o = chain->widths[l + 1];
    if (chain->rectified[l]) rectify_back(grads[l], outputs[l], rows * o);
    REAL *ahead = grads[l] + m * o;
    if (n) product(ahead, d[l], 0, gram, m, o, n);
    if (l) {
      backward(chain, l, outputs, grads, rows);
      if (n) add_rows(grads[l - 1] + m * k, a[l], gram, m, n, n, 1, -step, k);
      continue;
    }
    if (n)
      for (long i = 0; i < m * o; i++) grads[0][i] += ahead[i]; /* both have the same input */
    memset(grad_x, 0, m * inputs * sizeof(REAL));
    add_rows(grad_x, chain->weights[0], grads[0], m, o, o, 1, 1, k);
    if (n) add_rows(grad_x, a[0], gram, m, n, n, 1, -step, k);
  }
  return 1;
}
