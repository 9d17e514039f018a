extern "C" __global__ void divergent(const float* x, float* y, int n) {
  __shared__ float s[64];
  int t = threadIdx.x;
  if (t < n) { s[t] = x[t]; __syncthreads(); y[t] = s[n - 1 - t]; }
}
