#map = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#map1 = affine_map<(d0, d1, d2, d3) -> (0, d1, d2, d3)>
module {
  func.func @forward(%arg0: tensor<2x3x8x8xf32>, %arg1: tensor<8x3x3x3xf32>, %arg2: tensor<8xf32>) -> (tensor<3x8x4x4xf32>, tensor<2x8x4x4xi1>, tensor<2x8x4x4xf16>) {
    %cst = arith.constant 0.000000e+00 : f32
    %cst_0 = arith.constant 0xFF800000 : f32
    %cst_1 = arith.constant 0.000000e+00 : f64
    %padded = tensor.pad %arg0 low[0, 0, 1, 1] high[0, 0, 1, 1] {
    ^bb0(%arg3: index, %arg4: index, %arg5: index, %arg6: index):
      tensor.yield %cst : f32
    } : tensor<2x3x8x8xf32> to tensor<2x3x10x10xf32>
    %0 = tensor.empty() : tensor<2x8x8x8xf32>
    %broadcasted = linalg.broadcast ins(%arg2 : tensor<8xf32>) outs(%0 : tensor<2x8x8x8xf32>) dimensions = [0, 2, 3] 
    %1 = linalg.conv_2d_nchw_fchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>} ins(%padded, %arg1 : tensor<2x3x10x10xf32>, tensor<8x3x3x3xf32>) outs(%broadcasted : tensor<2x8x8x8xf32>) -> tensor<2x8x8x8xf32>
    %2 = tensor.empty() : tensor<2x8x4x4xf32>
    %3 = linalg.fill ins(%cst_0 : f32) outs(%2 : tensor<2x8x4x4xf32>) -> tensor<2x8x4x4xf32>
    %4 = tensor.empty() : tensor<2x2xf32>
    %5 = linalg.pooling_nchw_max {dilations = dense<1> : vector<2xi64>, strides = dense<2> : vector<2xi64>} ins(%1, %4 : tensor<2x8x8x8xf32>, tensor<2x2xf32>) outs(%3 : tensor<2x8x4x4xf32>) -> tensor<2x8x4x4xf32>
    %6 = tensor.empty() : tensor<1x8x4x4xf32>
    %7 = linalg.fill ins(%cst : f32) outs(%6 : tensor<1x8x4x4xf32>) -> tensor<1x8x4x4xf32>
    %8 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["reduction", "parallel", "parallel", "parallel"]} ins(%5 : tensor<2x8x4x4xf32>) outs(%7 : tensor<1x8x4x4xf32>) {
    ^bb0(%in: f32, %out: f32):
      %19 = arith.addf %in, %out : f32
      linalg.yield %19 : f32
    } -> tensor<1x8x4x4xf32>
    %concat = tensor.concat dim(0) %5, %8 : (tensor<2x8x4x4xf32>, tensor<1x8x4x4xf32>) -> tensor<3x8x4x4xf32>
    %9 = tensor.empty() : tensor<2x8x4x4xi1>
    %10 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%5 : tensor<2x8x4x4xf32>) outs(%9 : tensor<2x8x4x4xi1>) {
    ^bb0(%in: f32, %out: i1):
      %19 = arith.extf %in : f32 to f64
      %20 = arith.cmpf ogt, %19, %cst_1 : f64
      linalg.yield %20 : i1
    } -> tensor<2x8x4x4xi1>
    %11 = tensor.empty() : tensor<2x8x4x4xf16>
    %12 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%5 : tensor<2x8x4x4xf32>) outs(%11 : tensor<2x8x4x4xf16>) {
    ^bb0(%in: f32, %out: f16):
      %19 = arith.truncf %in : f32 to f16
      linalg.yield %19 : f16
    } -> tensor<2x8x4x4xf16>
    %transposed = linalg.transpose ins(%12 : tensor<2x8x4x4xf16>) outs(%11 : tensor<2x8x4x4xf16>) permutation = [0, 1, 3, 2] 
    %13 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%12 : tensor<2x8x4x4xf16>) outs(%2 : tensor<2x8x4x4xf32>) {
    ^bb0(%in: f16, %out: f32):
      %19 = arith.extf %in : f16 to f32
      linalg.yield %19 : f32
    } -> tensor<2x8x4x4xf32>
    %14 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%transposed : tensor<2x8x4x4xf16>) outs(%2 : tensor<2x8x4x4xf32>) {
    ^bb0(%in: f16, %out: f32):
      %19 = arith.extf %in : f16 to f32
      linalg.yield %19 : f32
    } -> tensor<2x8x4x4xf32>
    %collapsed = tensor.collapse_shape %13 [[0, 1], [2], [3]] : tensor<2x8x4x4xf32> into tensor<16x4x4xf32>
    %collapsed_2 = tensor.collapse_shape %14 [[0, 1], [2], [3]] : tensor<2x8x4x4xf32> into tensor<16x4x4xf32>
    %15 = tensor.empty() : tensor<16x4x4xf32>
    %16 = linalg.fill ins(%cst : f32) outs(%15 : tensor<16x4x4xf32>) -> tensor<16x4x4xf32>
    %17 = linalg.batch_matmul ins(%collapsed, %collapsed_2 : tensor<16x4x4xf32>, tensor<16x4x4xf32>) outs(%16 : tensor<16x4x4xf32>) -> tensor<16x4x4xf32>
    %expanded = tensor.expand_shape %17 [[0, 1], [2], [3]] output_shape [2, 8, 4, 4] : tensor<16x4x4xf32> into tensor<2x8x4x4xf32>
    %18 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%expanded : tensor<2x8x4x4xf32>) outs(%11 : tensor<2x8x4x4xf16>) {
    ^bb0(%in: f32, %out: f16):
      %19 = arith.truncf %in : f32 to f16
      linalg.yield %19 : f16
    } -> tensor<2x8x4x4xf16>
    return %concat, %10, %18 : tensor<3x8x4x4xf32>, tensor<2x8x4x4xi1>, tensor<2x8x4x4xf16>
  }
}
