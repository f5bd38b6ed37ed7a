// Operations of a decoder layer in one pass over memory each, compiled when a backbone first computes on a CUDA device.
// What is computed is what ops.rs says: in f32, rounded once. A warp of 32 threads has a row, or a block of them has.

#define INFINITE __int_as_float(0x7f800000)
typedef unsigned short half_t;

__device__ float of_f32(float x) { return x; }
__device__ float to_f32(float x) { return x; }
__device__ float of_bf16(half_t x) { return __uint_as_float((unsigned)x << 16); }
__device__ half_t to_bf16(float x) {
  unsigned bits = __float_as_uint(x);
  if (x != x) return (half_t)(bits >> 16 | 0x40);
  return (half_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
__device__ float of_f16(half_t x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
__device__ half_t to_f16(float x) {
  half_t y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

// The greatest of some numbers, and the sum of e^(x - greatest).
struct Sum {
  float most, sum;
};

// What is not a number is no greatest, and shows in the sum. What is minus infinity adds nothing.
__device__ void add(Sum &to, float x) {
  if (x > to.most) {
    to.sum = to.sum * expf(to.most - x) + 1.0f;
    to.most = x;
  } else if (x != -INFINITE) {
    to.sum += expf(x - to.most);
  }
}

__device__ Sum both(Sum a, Sum b) {
  float most = fmaxf(a.most, b.most);
  float of_a = a.most == -INFINITE ? a.sum : a.sum * expf(a.most - most);
  float of_b = b.most == -INFINITE ? b.sum : b.sum * expf(b.most - most);
  return {most, of_a + of_b};
}

// Of each row of logits [rows, vocab] the logarithm of the sum of exponentials, and the first of the greatest: a block a row.
extern "C" __global__ void head_rows(const float *logits, unsigned vocab, float *denominators, float *likeliest) {
  const float *row = logits + (size_t)blockIdx.x * vocab;
  Sum sum = {-INFINITE, 0.0f};
  unsigned first = vocab;
  for (unsigned i = threadIdx.x; i < vocab; i += blockDim.x) {
    if (row[i] > sum.most) first = i;
    add(sum, row[i]);
  }
  __shared__ Sum sums[1024];
  __shared__ unsigned firsts[1024];
  sums[threadIdx.x] = sum;
  firsts[threadIdx.x] = first;
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      Sum a = sums[threadIdx.x], b = sums[threadIdx.x + half];
      unsigned of_a = firsts[threadIdx.x], of_b = firsts[threadIdx.x + half];
      firsts[threadIdx.x] = a.most == b.most ? min(of_a, of_b) : a.most > b.most ? of_a : of_b;
      sums[threadIdx.x] = both(a, b);
    }
  }
  if (threadIdx.x == 0) {
    denominators[blockIdx.x] = sums[0].most + logf(sums[0].sum);
    likeliest[blockIdx.x] = (float)firsts[0];
  }
}

#define KERNELS(T, NAME)                                                                                               \
  /* Softmax of scaled, capped and masked scores [rows, k]; the mask is [q, k], row after row and again. A cap of 0 is  \
     none. A warp a row. */                                                                                            \
  extern "C" __global__ void weights_##NAME(const T *scores, const float *mask, T *out, unsigned rows, unsigned q,     \
                                            unsigned k, float scale, float cap) {                                      \
    unsigned row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;                         \
    if (row >= rows) return;                                                                                           \
    scores += (size_t)row * k;                                                                                         \
    out += (size_t)row * k;                                                                                            \
    mask += (size_t)(row % q) * k;                                                                                     \
    auto score = [&](unsigned i) {                                                                                     \
      float x = of_##NAME(scores[i]) * scale;                                                                          \
      return (cap > 0.0f ? tanhf(x / cap) * cap : x) + mask[i];                                                        \
    };                                                                                                                 \
    Sum sum = {-INFINITE, 0.0f};                                                                                       \
    for (unsigned i = lane; i < k; i += 32) add(sum, score(i));                                                        \
    for (unsigned apart = 16; apart > 0; apart /= 2) {                                                                 \
      Sum other = {__shfl_xor_sync(~0u, sum.most, apart), __shfl_xor_sync(~0u, sum.sum, apart)};                       \
      sum = both(sum, other);                                                                                          \
    }                                                                                                                  \
    for (unsigned i = lane; i < k; i += 32) out[i] = to_##NAME(expf(score(i) - sum.most) / sum.sum);                   \
  }                                                                                                                    \
                                                                                                                       \
  /* x / sqrt(mean(x^2) + eps) * weight of rows of c numbers: a block a row. */                                        \
  extern "C" __global__ void rms_norm_##NAME(const T *x, const float *weight, T *out, unsigned c, float eps) {         \
    x += (size_t)blockIdx.x * c;                                                                                       \
    out += (size_t)blockIdx.x * c;                                                                                     \
    float sum = 0.0f;                                                                                                  \
    for (unsigned i = threadIdx.x; i < c; i += blockDim.x) sum += of_##NAME(x[i]) * of_##NAME(x[i]);                   \
    for (unsigned apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);                          \
    __shared__ float sums[32];                                                                                         \
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;                                                           \
    __syncthreads();                                                                                                   \
    sum = 0.0f;                                                                                                        \
    for (unsigned warp = 0; warp < blockDim.x / 32; warp++) sum += sums[warp];                                         \
    float root = sqrtf(sum / c + eps);                                                                                 \
    for (unsigned i = threadIdx.x; i < c; i += blockDim.x) out[i] = to_##NAME(of_##NAME(x[i]) / root * weight[i]);     \
  }                                                                                                                    \
                                                                                                                       \
  /* The rotary embedding of x [rows, heads, 2 * half] by cos and sin [rows, half]. */                                 \
  extern "C" __global__ void rotate_##NAME(const T *x, const float *cos, const float *sin, T *out, unsigned count,     \
                                           unsigned heads, unsigned half) {                                            \
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;                                                                \
    if (i >= count) return;                                                                                            \
    unsigned head = i / half, at = i % half;                                                                           \
    size_t turn = (size_t)(head / heads) * half + at, first = (size_t)head * 2 * half + at;                            \
    float a = of_##NAME(x[first]), b = of_##NAME(x[first + half]);                                                     \
    out[first] = to_##NAME(a * cos[turn] - b * sin[turn]);                                                             \
    out[first + half] = to_##NAME(b * cos[turn] + a * sin[turn]);                                                      \
  }                                                                                                                    \
                                                                                                                       \
  /* silu(gate) * up */                                                                                                \
  extern "C" __global__ void silu_mul_##NAME(const T *gate, const T *up, T *out, unsigned long long count) {           \
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;                                  \
    if (i >= count) return;                                                                                            \
    float x = of_##NAME(gate[i]);                                                                                      \
    out[i] = to_##NAME(x / (1.0f + expf(-x)) * of_##NAME(up[i]));                                                      \
  }

KERNELS(float, f32)
KERNELS(half_t, bf16)
KERNELS(half_t, f16)
