#include <cuda_fp16.h>
#include <cuda_bf16.h>
struct P { float a; int k[3]; double d; };
__constant__ float tab[4] = {1.f, 2.f, 4.f, 8.f};
__device__ int counter;
extern "C" __global__ void structp(P p, float* o) { o[threadIdx.x] = p.a * p.k[threadIdx.x % 3] + (float)p.d + tab[threadIdx.x & 3]; atomicAdd(&counter, 1); __syncthreads(); if (threadIdx.x == 0) o[32] = counter; }
extern "C" __global__ void half2k(const __half2* x, __half2* y, __nv_bfloat162* z) { int t = threadIdx.x; __half2 v = x[t]; y[t] = __hfma2(v, v, __hmul2(v, __float2half2_rn(0.5f))); z[t] = __hadd2(__float22bfloat162_rn(__half22float2(v)), __float2bfloat162_rn(1.f)); }
extern "C" __global__ void sw(const int* x, int* y) { int t = threadIdx.x, v = x[t], r; switch (v) { case 0: r = 10; break; case 1: r = v * 7 + t; break; case 2: r = 99; break; case 3: r = t * t; break; case 4: r = -1; break; case 5: r = t ^ 21; break; case 6: r = 5 - t; break; default: r = 1000; } y[t] = r; }
extern "C" __global__ void dadd(double* s) { unsigned long long* p = (unsigned long long*)s, old = *p, a; do { a = old; old = atomicCAS(p, a, __double_as_longlong(__longlong_as_double(a) + 1.5)); } while (a != old); }
extern "C" __global__ void named(int* x) {  // producer / consumer warps over named barriers
  __shared__ int b[2][32]; int w = threadIdx.x >> 5, l = threadIdx.x & 31;
  for (int i = 0; i < 4; ++i) {
    int s = i & 1;
    if (w == 0) { if (i >= 2) asm volatile("bar.sync %0, 64;" :: "r"(3 + s) : "memory"); b[s][l] = x[i * 32 + l] * 2; asm volatile("bar.arrive %0, 64;" :: "r"(1 + s) : "memory"); }
    else { asm volatile("bar.sync %0, 64;" :: "r"(1 + s) : "memory"); x[i * 32 + l] = b[s][31 - l]; if (i < 2) asm volatile("bar.arrive %0, 64;" :: "r"(3 + s) : "memory"); }
  }
}
extern "C" __global__ void dp(const int* a, int* o) { int t = threadIdx.x; o[t] = __dp4a(a[t], a[63 - t], 5); }
extern "C" __global__ void cnt(const int* a, int* o) { int t = threadIdx.x; o[t] = __syncthreads_count(a[t] & 1) * 100 + __syncthreads_or(a[t] == 3) * 10 + __syncthreads_and(a[t] < 1000); }
extern "C" __global__ void match(const int* a, unsigned* o) { int t = threadIdx.x; o[t] = __match_any_sync(~0u, a[t] & 3); }
extern "C" __global__ void legacy(int* a) { __shared__ volatile int s[64]; int t = threadIdx.x; s[t] = a[t]; if (t < 32) { s[t] += s[t + 32]; s[t] += s[t + 16]; s[t] += s[t + 8]; s[t] += s[t + 4]; s[t] += s[t + 2]; s[t] += s[t + 1]; } if (!t) a[0] = s[0]; }
extern "C" __global__ void grid2(int* flag, int* out) { // inter-block hand-shake
  if (threadIdx.x == 0) { atomicAdd(flag, 1); while (atomicAdd(flag, 0) < gridDim.x) ; out[blockIdx.x] = *(volatile int*)flag; } }
