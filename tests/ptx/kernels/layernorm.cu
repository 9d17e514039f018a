#include <cuda_bf16.h>
#include <cuda_pipeline.h>
// persistent blocks of 128 threads, one row at a time, two row buffers
extern "C" __global__ void ln_fwd(const __nv_bfloat16* x, const __nv_bfloat16* gamma, const __nv_bfloat16* beta,
                                  __nv_bfloat16* y, int M, int N, float eps) {
  extern __shared__ __align__(16) __nv_bfloat16 buf[];
  __shared__ float red[2][4];
  int t = threadIdx.x, row = blockIdx.x, stage = 0;
  for (int i = t * 8; i < N; i += blockDim.x * 8)
    __pipeline_memcpy_async(buf + i, x + (size_t)row * N + i, 16);
  __pipeline_commit();
  for (; row < M; row += gridDim.x, stage ^= 1) {
    int next = row + gridDim.x;
    if (next < M)
      for (int i = t * 8; i < N; i += blockDim.x * 8)
        __pipeline_memcpy_async(buf + (stage ^ 1) * N + i, x + (size_t)next * N + i, 16);
    __pipeline_commit();
    WAIT
    __syncthreads();
    const __nv_bfloat16* r = buf + stage * N;
    float s = 0.f, q = 0.f;
    for (int i = t; i < N; i += blockDim.x) { float v = __bfloat162float(r[i]); s += v; q += v * v; }
    for (int o = 16; o; o >>= 1) { s += __shfl_xor_sync(~0u, s, o); q += __shfl_xor_sync(~0u, q, o); }
    if ((t & 31) == 0) { red[0][t >> 5] = s; red[1][t >> 5] = q; }
    __syncthreads();
    s = red[0][0] + red[0][1] + red[0][2] + red[0][3];
    q = red[1][0] + red[1][1] + red[1][2] + red[1][3];
    float mean = s / N, rstd = rsqrtf(q / N - mean * mean + eps);
    for (int i = t; i < N; i += blockDim.x)
      y[(size_t)row * N + i] = __float2bfloat16((__bfloat162float(r[i]) - mean) * rstd * __bfloat162float(gamma[i]) + __bfloat162float(beta[i]));
    SYNC_END
  }
}
