__device__ __noinline__ int collatz(int n) { int k = 0; while (n != 1) { n = n & 1 ? 3 * n + 1 : n / 2; ++k; } return k; }
extern "C" __global__ void local_call(const int* x, int* y, int n) {
  int i = threadIdx.x, tmp[8];
  for (int j = 0; j < 8; ++j) tmp[(j * x[i]) & 7] = j;
  if (i < n) y[i] = collatz(x[i]) * 8 + tmp[x[i] & 7];
}
