extern "C" __global__ void scan(const int* x, int* y, int n) {
  extern __shared__ int s[];
  int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  s[t] = i < n ? x[i] : 0;
  __syncthreads();
  for (int d = 1; d < blockDim.x; d <<= 1) {
    int v = t >= d ? s[t - d] : 0;
    SYNC1
    s[t] += v;
    __syncthreads();
  }
  if (i < n) y[i] = s[t];
}
