// Sums over all pairs of rows, and their gradients: what minsum.py beside this file calls.
//
// Rows are multiples of 64 bytes, so that no loop has a tail; padding is absent from all. Every number is finite
// and no sum overflows: the caller sees to that. The order of a sum does not depend on the number of threads. Nothing of
// C++'s own library is used, so that any torch can load this.

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif

template <class T, class I> struct Of {
  typedef T vector __attribute__((vector_size(BYTES)));
  typedef T in_memory __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
  typedef I bits __attribute__((vector_size(BYTES)));
  typedef I bit;
};
template <class T> struct Lanes;
template <> struct Lanes<float> : Of<float, int32_t> {
  static const int mantissa = 23, bias = 127;
};
template <> struct Lanes<double> : Of<double, int64_t> {
  static const int mantissa = 52, bias = 1023;
};
#define VECTOR typename Lanes<T>::vector
#define BITS typename Lanes<T>::bits
#define WIDTH (int)(BYTES / sizeof(T))

// Pairs that share what they load, A rows of a by B rows of b: as many as registers hold.
enum { A = BYTES == 64 ? 4 : 2, B = 4, PAIRS = A * B };

struct Call {
  const void *grad, *a, *b;  // [N, P], [N, width], [P, width] of each batch
  void *first, *second;      // sums or products and exponents, [N, P]; or gradients, [N, width] and [P, width]
  void* columns;             // Σ_i grad, [P]
  long batches, N, P, width, steps, threads, tasks, next, scratch;
  int soft, failed;
};

template <class T> static inline VECTOR load(const T* p) { return *(const typename Lanes<T>::in_memory*)p; }
template <class T> static inline void store(T* p, VECTOR x) { *(typename Lanes<T>::in_memory*)p = x; }

struct Plus {
  template <class V> static V of(V x, V y) { return x + y; }
};
struct Times {
  template <class V> static V of(V x, V y) { return x * y; }
};

// The sum or product over the lanes of each of PAIRS vectors: neighbours, again and again, to PAIRS numbers.
template <class T, class Op, class V> static inline void pooled(V* x) {
  for (int w = WIDTH, count = PAIRS; w > 1; w /= 2, count /= 2)
    for (int m = 0; m < count / 2; m++) {
      V u = x[2 * m], v = x[2 * m + 1];
#ifdef __clang__
      V even, odd;
      for (int l = 0; l < WIDTH; l++) {
        even[l] = 2 * l < WIDTH ? u[2 * l] : v[2 * l - WIDTH];
        odd[l] = 2 * l < WIDTH ? u[2 * l + 1] : v[2 * l + 1 - WIDTH];
      }
      x[m] = Op::of(even, odd);
#else
      BITS even, odd;
      for (int l = 0; l < WIDTH; l++) even[l] = 2 * l, odd[l] = 2 * l + 1;
      x[m] = Op::of(__builtin_shuffle(u, v, even), __builtin_shuffle(u, v, odd));
#endif
    }
}

// Σ min(a, b) of PAIRS pairs, for measures that are 0 where they are absent.
template <class T> static inline void least(const T** a, const T** b, long width, T* sums) {
  VECTOR sum[PAIRS] = {};
  for (long k = 0; k < width; k += WIDTH) {
    VECTOR x[A];
    for (int i = 0; i < A; i++) x[i] = load(a[i] + k);
    for (int j = 0; j < B; j++) {
      VECTOR y = load(b[j] + k);
      for (int i = 0; i < A; i++) sum[i * B + j] += x[i] < y ? x[i] : y;
    }
  }
  pooled<T, Plus>(sum);
  memcpy(sums, sum, PAIRS * sizeof(T));
}

// Π (a + b) of PAIRS pairs over what both have: −Σ softmin is its logarithm. a is e^−measure, 4 where that is absent.
// After every few steps the powers of 2 are taken out of the products, so that they neither vanish nor overflow.
template <class T>
static inline void soft(const T** a, const T** b, long width, long steps, T* products, T* exponents) {
  const BITS bias = BITS{} + Lanes<T>::bias;
  VECTOR product[PAIRS];
  BITS exponent[PAIRS] = {};
  for (int q = 0; q < PAIRS; q++) product[q] = VECTOR{} + 1;
  for (long start = 0; start < width; start += steps * WIDTH) {
    long end = start + steps * WIDTH < width ? start + steps * WIDTH : width;
    for (long k = start; k < end; k += WIDTH) {
      VECTOR x[A];
      for (int i = 0; i < A; i++) x[i] = load(a[i] + k);
      for (int j = 0; j < B; j++) {
        VECTOR y = load(b[j] + k);
        for (int i = 0; i < A; i++) {
          VECTOR s = x[i] + y, p = product[i * B + j];
          product[i * B + j] = s <= 2 ? p * s : p;
        }
      }
    }
    for (int q = 0; q < PAIRS; q++) {
      BITS e = ((BITS)product[q] >> Lanes<T>::mantissa) - bias;
      exponent[q] += e;
      product[q] = (VECTOR)((BITS)product[q] - (e << Lanes<T>::mantissa));
    }
  }
  pooled<T, Times>(product);
  pooled<T, Plus>(exponent);
  typename Lanes<T>::bit sums[PAIRS];
  memcpy(products, product, PAIRS * sizeof(T));
  memcpy(sums, exponent, PAIRS * sizeof(T));
  for (int q = 0; q < PAIRS; q++) exponents[q] = sums[q];
}

// A task of sums is BLOCK rows of a by as many rows of b as the second cache holds.
enum { BLOCK = 64, CACHE = 1 << 18 };

template <class T> static long rows_of(const Call& c) {
  long rows = CACHE / (long)sizeof(T) / c.width / B * B, most = BLOCK, least = B;
  return rows < least ? least : rows < most ? rows : most;
}

// The positive part of rows that lie side by side.
template <class T> static void copy_positive(T* to, const T* from, long count) {
  for (long k = 0; k < count; k += WIDTH) {
    VECTOR x = load(from + k);
    store(to + k, x > 0 ? x : VECTOR{});
  }
}

template <class T> static void sums_of(Call& c, long task, void* scratch) {
  long high = rows_of<T>(c), blocks = (c.N + BLOCK - 1) / BLOCK, columns = (c.P + high - 1) / high;
  long batch = task / (blocks * columns), top = task / columns % blocks * BLOCK, left = task % columns * high;
  long rows = c.N - top < BLOCK ? c.N - top : (long)BLOCK, others = c.P - left < high ? c.P - left : high;
  const T *a = (const T*)c.a + (batch * c.N + top) * c.width, *b = (const T*)c.b + (batch * c.P + left) * c.width;
  T *out = (T*)c.first + (batch * c.N + top) * c.P + left, *exponents = (T*)c.second + (batch * c.N + top) * c.P + left;
  if (!c.soft) {
    T *x = (T*)scratch, *y = x + BLOCK * c.width;
    copy_positive(x, a, rows * c.width), copy_positive(y, b, others * c.width);
    a = x, b = y;
  }
  for (long i = 0; i < rows; i += A)
    for (long j = 0; j < others; j += B) {
      const T *x[A], *y[B];
      T s[PAIRS], e[PAIRS];
      // Past the end the last row is taken again, and its sums are not kept.
      for (int q = 0; q < A; q++) x[q] = a + (i + q < rows ? i + q : rows - 1) * c.width;
      for (int r = 0; r < B; r++) y[r] = b + (j + r < others ? j + r : others - 1) * c.width;
      c.soft ? soft<T>(x, y, c.width, c.steps, s, e) : least<T>(x, y, c.width, s);
      for (int q = 0; q < A && i + q < rows; q++)
        for (int r = 0; r < B && j + r < others; r++) {
          out[(i + q) * c.P + j + r] = s[q * B + r];
          if (c.soft) exponents[(i + q) * c.P + j + r] = e[q * B + r];
        }
    }
}

template <class V> static inline V inverse(V x) { return 1 / x; }
#if BYTES == 64
static inline Lanes<float>::vector inverse(Lanes<float>::vector x) {
  // A division takes three times as long as an estimate and one step of Newton's.
  __m512 r = _mm512_rcp14_ps((__m512)x);
  return (Lanes<float>::vector)_mm512_mul_ps(r, _mm512_fnmadd_ps((__m512)x, r, _mm512_set1_ps(2)));
}
#endif

// What two rows of a, and a block of rows of b that lie side by side, take of the gradient, in V vectors of features.
template <class T> struct Two {
  const T *g[2], *x[2];
  T* dx[2];
  const T* y;
  T* dy;
  long rows;
};

// Where measures tie, all of the gradient went to b: half of it goes back.
template <class T> static void share_ties(const Two<T>& t, int row, long pitch) {
  for (long j = 0; j < t.rows; j++)
    for (long k = 0; k < pitch; k++)
      if (t.x[row][k] == t.y[j * pitch + k]) {
        t.dx[row][k] += t.g[row][j] / 2;
        t.dy[j * pitch + k] -= t.g[row][j] / 2;
      }
}

// dx is Σ g where x < y. dy is that times −1: the caller adds Σ g. What is absent from b is below every number, so that
// the many ties at 0 are none.
template <class T, int V> static void least_gradients(const Two<T>& t) {
  VECTOR x[2][V], d[2][V];
  BITS tie = {}, again = {};
  for (int v = 0; v < V; v++)
    for (int q = 0; q < 2; q++) x[q][v] = load(t.x[q] + v * WIDTH), d[q][v] = load(t.dx[q] + v * WIDTH);
  for (long j = 0; j < t.rows; j++) {
    VECTOR g = VECTOR{} + t.g[0][j], h = VECTOR{} + t.g[1][j];
    for (int v = 0; v < V; v++) {
      VECTOR y = load(t.y + (j * V + v) * WIDTH), e = load(t.dy + (j * V + v) * WIDTH);
      d[0][v] = x[0][v] < y ? d[0][v] + g : d[0][v];
      e = x[0][v] < y ? e - g : e;
      d[1][v] = x[1][v] < y ? d[1][v] + h : d[1][v];
      e = x[1][v] < y ? e - h : e;
      tie = x[0][v] == y ? ~BITS{} : tie;
      again = x[1][v] == y ? ~BITS{} : again;
      store(t.dy + (j * V + v) * WIDTH, e);
    }
  }
  for (int v = 0; v < V; v++)
    for (int q = 0; q < 2; q++) store(t.dx[q] + v * WIDTH, d[q][v]);
  tie |= again;
  int ties = 0;
  for (int l = 0; l < WIDTH; l++) ties |= tie[l] != 0;
  for (int q = 0; ties && q < 2; q++) share_ties(t, q, V * WIDTH);
}

// dx and dy are Σ g / (x + y) over what both have: times x and y, the gradients.
template <class T, int V> static void soft_gradients(const Two<T>& t) {
  VECTOR x[2][V], d[2][V];
  for (int v = 0; v < V; v++)
    for (int q = 0; q < 2; q++) x[q][v] = load(t.x[q] + v * WIDTH), d[q][v] = load(t.dx[q] + v * WIDTH);
  for (long j = 0; j < t.rows; j++) {
    VECTOR g = VECTOR{} + t.g[0][j], h = VECTOR{} + t.g[1][j];
    for (int v = 0; v < V; v++) {
      VECTOR y = load(t.y + (j * V + v) * WIDTH), e = load(t.dy + (j * V + v) * WIDTH);
      VECTOR s = x[0][v] + y, u = x[1][v] + y, p = g * inverse(s), q = h * inverse(u);
      d[0][v] = s <= 2 ? d[0][v] + p : d[0][v];
      e = s <= 2 ? e + p : e;
      d[1][v] = u <= 2 ? d[1][v] + q : d[1][v];
      e = u <= 2 ? e + q : e;
      store(t.dy + (j * V + v) * WIDTH, e);
    }
  }
  for (int v = 0; v < V; v++)
    for (int q = 0; q < 2; q++) store(t.dx[q] + v * WIDTH, d[q][v]);
}

// A task of gradients is a panel of features, V vectors of every row.
template <class T, int V> static void panel_of(const Call& c, long batch, long k) {
  enum { L = V * WIDTH };
  const T *g = (const T*)c.grad + batch * c.N * c.P, *columns = (const T*)c.columns + batch * c.P;
  const T *a = (const T*)c.a + batch * c.N * c.width + k, *b = (const T*)c.b + batch * c.P * c.width + k;
  T *to_a = (T*)c.first + batch * c.N * c.width + k, *to_b = (T*)c.second + batch * c.P * c.width + k;
  // Side by side, since rows whose distance is a power of two would drive each other out of the cache.
  T y[BLOCK * L], dy[BLOCK * L], nothing[BLOCK] = {}, unused[L] = {};
  const VECTOR lowest = VECTOR{} - (sizeof(T) == 4 ? (T)3.4e38 : (T)1.7e308);
  for (long i = 0; i < c.N; i++) memset(to_a + i * c.width, 0, L * sizeof(T));
  for (long j = 0; j < c.P; j += BLOCK) {
    long left = c.P - j, rows = left < BLOCK ? left : (long)BLOCK;
    for (long r = 0; r < rows; r++)
      for (int v = 0; v < V; v++) {
        VECTOR from = load(b + (j + r) * c.width + v * WIDTH);
        store(y + r * L + v * WIDTH, from > 0 ? from : lowest);
      }
    memset(dy, 0, sizeof dy);
    for (long i = 0; i < c.N; i += 2) {
      const T *x = a + i * c.width, *h = g + i * c.P + j;
      T* d = to_a + i * c.width;
      // The last of an odd number of rows has itself for company, whose gradient is 0.
      Two<T> t = {{h, nothing}, {x, x}, {d, unused}, y, dy, rows};
      if (i + 1 < c.N) t.g[1] = h + c.P, t.x[1] = x + c.width, t.dx[1] = d + c.width;
      c.soft ? soft_gradients<T, V>(t) : least_gradients<T, V>(t);
    }
    for (long r = 0; r < rows; r++)
      for (long l = 0; l < L; l++) {
        T m = y[r * L + l], d = dy[r * L + l];
        to_b[(j + r) * c.width + l] = c.soft ? (m <= 1 ? m * d : 0) : (m > 0 ? columns[j + r] + d : 0);
      }
  }
  for (long i = 0; i < c.N; i++)
    for (long l = 0; l < L; l++) {
      T m = a[i * c.width + l], &d = to_a[i * c.width + l];
      d = c.soft ? (m <= 1 ? m * d : 0) : (m > 0 ? d : 0);
    }
}

// Vectors of a panel: fewer where there would not be a panel for each thread.
template <class T> static long panel(const Call& c) {
  long vectors = c.width / WIDTH, wide = BYTES == 64 ? 4 : 2;
  while (wide > 1 && (vectors + wide - 1) / wide * c.batches < c.threads) wide /= 2;
  return wide;
}

template <class T> static void gradients_of(Call& c, long task, void*) {
  long vectors = c.width / WIDTH, wide = panel<T>(c), panels = (vectors + wide - 1) / wide;
  long batch = task / panels, first = task % panels * wide, left = vectors - first;
  long k = first * WIDTH;
  switch (left < wide ? left : wide) {
    case 4: return panel_of<T, 4>(c, batch, k);
    case 3: return panel_of<T, 3>(c, batch, k);
    case 2: return panel_of<T, 2>(c, batch, k);
    default: return panel_of<T, 1>(c, batch, k);
  }
}

template <void (*one)(Call&, long, void*)> static void* work(void* call) {
  Call& c = *(Call*)call;
  void* scratch = 0;
  if (c.scratch && posix_memalign(&scratch, 64, c.scratch)) return __atomic_store_n(&c.failed, 1, __ATOMIC_RELAXED), call;
  for (long task; (task = __atomic_fetch_add(&c.next, 1, __ATOMIC_RELAXED)) < c.tasks;) one(c, task, scratch);
  free(scratch);
  return 0;
}

// Threads end with the call, so that a fork never finds any. Without threads to be had, the caller's own does it all.
template <void (*one)(Call&, long, void*)> static int run(Call& c) {
  enum { MOST = 256 };
  pthread_t threads[MOST];
  long wanted = (c.threads < c.tasks ? c.threads : c.tasks) - 1, extra = 0;
  while (extra < wanted && extra < MOST && !pthread_create(&threads[extra], 0, work<one>, &c)) extra++;
  work<one>(&c);
  while (extra) pthread_join(threads[--extra], 0);
  return c.failed;
}

template <class T> static int sums(Call& c) {
  long high = rows_of<T>(c);
  c.tasks = c.batches * ((c.N + BLOCK - 1) / BLOCK) * ((c.P + high - 1) / high);
  c.scratch = c.soft ? 0 : (BLOCK + high) * c.width * (long)sizeof(T);
  return run<sums_of<T>>(c);
}

template <class T> static int gradients(Call& c) {
  // In the order of the sums that are taken from it: what remains of equal sums is exactly 0.
  T *columns = (T*)c.columns;
  const T* g = (const T*)c.grad;
  memset(columns, 0, c.batches * c.P * sizeof(T));
  for (long batch = 0; batch < c.batches; batch++, columns += c.P)
    for (long i = 0; i < c.N; i++, g += c.P)
      for (long j = 0; j < c.P; j++) columns[j] += g[j];
  long wide = panel<T>(c) * WIDTH;
  c.tasks = c.batches * ((c.width + wide - 1) / wide);
  return run<gradients_of<T>>(c);
}

// Both return what is not 0 where memory could not be had.
extern "C" int pair_sum(int doubles, int soft, const void* a, const void* b, void* out, void* exponents, long batches,
                        long N, long P, long width, long steps, long threads) {
  Call c = {0, a, b, out, exponents, 0, batches, N, P, width, steps, threads, 0, 0, 0, soft, 0};
  return doubles ? sums<double>(c) : sums<float>(c);
}

extern "C" int pair_sum_gradients(int doubles, int soft, const void* grad, const void* a, const void* b, void* to_a,
                                  void* to_b, void* columns, long batches, long N, long P, long width, long threads) {
  Call c = {grad, a, b, to_a, to_b, columns, batches, N, P, width, 0, threads, 0, 0, 0, soft, 0};
  return doubles ? gradients<double>(c) : gradients<float>(c);
}
