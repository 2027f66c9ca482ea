#map = affine_map<(d0, d1) -> (d0, d1)>
#map1 = affine_map<(d0, d1) -> (d1)>
#map2 = affine_map<(d0, d1) -> (d0, 0)>
#map3 = affine_map<(d0, d1) -> (d0)>
module {
  func.func @forward(%arg0: tensor<4x24xf32>, %arg1: tensor<16x24xf32>, %arg2: tensor<16xf32>, %arg3: tensor<16xf32>, %arg4: tensor<16xf32>) -> tensor<4x16xf32> {
    %cst = arith.constant 0.000000e+00 : f32
    %cst_0 = arith.constant 1.000000e+00 : f32
    %cst_1 = arith.constant 5.000000e-01 : f32
    %c0_i64 = arith.constant 0 : i64
    %cst_2 = arith.constant 0xFF800000 : f32
    %cst_3 = arith.constant 1.000000e-05 : f64
    %cst_4 = arith.constant 1.41421354 : f32
    %cst_5 = arith.constant 1.600000e+01 : f32
    %0 = tensor.empty() : tensor<24x16xf32>
    %transposed = linalg.transpose ins(%arg1 : tensor<16x24xf32>) outs(%0 : tensor<24x16xf32>) permutation = [1, 0] 
    %1 = tensor.empty() : tensor<4x16xf32>
    %2 = linalg.fill ins(%cst : f32) outs(%1 : tensor<4x16xf32>) -> tensor<4x16xf32>
    %3 = linalg.matmul ins(%arg0, %transposed : tensor<4x24xf32>, tensor<24x16xf32>) outs(%2 : tensor<4x16xf32>) -> tensor<4x16xf32>
    %4 = linalg.generic {indexing_maps = [#map, #map1, #map], iterator_types = ["parallel", "parallel"]} ins(%3, %arg2 : tensor<4x16xf32>, tensor<16xf32>) outs(%1 : tensor<4x16xf32>) {
    ^bb0(%in: f32, %in_7: f32, %out: f32):
      %30 = arith.addf %in, %in_7 : f32
      linalg.yield %30 : f32
    } -> tensor<4x16xf32>
    %5 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]} ins(%4 : tensor<4x16xf32>) outs(%1 : tensor<4x16xf32>) {
    ^bb0(%in: f32, %out: f32):
      %30 = arith.divf %in, %cst_4 : f32
      %31 = math.erf %30 : f32
      %32 = arith.addf %31, %cst_0 : f32
      %33 = arith.mulf %32, %cst_1 : f32
      %34 = arith.mulf %in, %33 : f32
      linalg.yield %34 : f32
    } -> tensor<4x16xf32>
    %6 = tensor.empty() : tensor<4x1xf32>
    %7 = linalg.fill ins(%cst : f32) outs(%6 : tensor<4x1xf32>) -> tensor<4x1xf32>
    %8 = linalg.generic {indexing_maps = [#map, #map2], iterator_types = ["parallel", "reduction"]} ins(%5 : tensor<4x16xf32>) outs(%7 : tensor<4x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %30 = arith.addf %in, %out : f32
      linalg.yield %30 : f32
    } -> tensor<4x1xf32>
    %9 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]} ins(%8 : tensor<4x1xf32>) outs(%6 : tensor<4x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %30 = arith.divf %in, %cst_5 : f32
      linalg.yield %30 : f32
    } -> tensor<4x1xf32>
    %collapsed = tensor.collapse_shape %9 [[0, 1]] : tensor<4x1xf32> into tensor<4xf32>
    %10 = linalg.generic {indexing_maps = [#map3, #map], iterator_types = ["parallel", "parallel"]} ins(%collapsed : tensor<4xf32>) outs(%1 : tensor<4x16xf32>) {
    ^bb0(%in: f32, %out: f32):
      linalg.yield %in : f32
    } -> tensor<4x16xf32>
    %11 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel", "parallel"]} ins(%5, %10 : tensor<4x16xf32>, tensor<4x16xf32>) outs(%1 : tensor<4x16xf32>) {
    ^bb0(%in: f32, %in_7: f32, %out: f32):
      %30 = arith.subf %in, %in_7 : f32
      linalg.yield %30 : f32
    } -> tensor<4x16xf32>
    %12 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel", "parallel"]} ins(%11, %11 : tensor<4x16xf32>, tensor<4x16xf32>) outs(%1 : tensor<4x16xf32>) {
    ^bb0(%in: f32, %in_7: f32, %out: f32):
      %30 = arith.mulf %in, %in_7 : f32
      linalg.yield %30 : f32
    } -> tensor<4x16xf32>
    %13 = linalg.generic {indexing_maps = [#map, #map2], iterator_types = ["parallel", "reduction"]} ins(%12 : tensor<4x16xf32>) outs(%7 : tensor<4x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %30 = arith.addf %in, %out : f32
      linalg.yield %30 : f32
    } -> tensor<4x1xf32>
    %14 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]} ins(%13 : tensor<4x1xf32>) outs(%6 : tensor<4x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %30 = arith.divf %in, %cst_5 : f32
      linalg.yield %30 : f32
    } -> tensor<4x1xf32>
    %15 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]} ins(%14 : tensor<4x1xf32>) outs(%6 : tensor<4x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %30 = arith.truncf %cst_3 : f64 to f32
      %31 = arith.addf %in, %30 : f32
      linalg.yield %31 : f32
    } -> tensor<4x1xf32>
    %16 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]} ins(%15 : tensor<4x1xf32>) outs(%6 : tensor<4x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %30 = math.rsqrt %in : f32
      linalg.yield %30 : f32
    } -> tensor<4x1xf32>
    %collapsed_6 = tensor.collapse_shape %16 [[0, 1]] : tensor<4x1xf32> into tensor<4xf32>
    %17 = linalg.generic {indexing_maps = [#map3, #map], iterator_types = ["parallel", "parallel"]} ins(%collapsed_6 : tensor<4xf32>) outs(%1 : tensor<4x16xf32>) {
    ^bb0(%in: f32, %out: f32):
      linalg.yield %in : f32
    } -> tensor<4x16xf32>
    %18 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel", "parallel"]} ins(%11, %17 : tensor<4x16xf32>, tensor<4x16xf32>) outs(%1 : tensor<4x16xf32>) {
    ^bb0(%in: f32, %in_7: f32, %out: f32):
      %30 = arith.mulf %in, %in_7 : f32
      linalg.yield %30 : f32
    } -> tensor<4x16xf32>
    %19 = linalg.generic {indexing_maps = [#map, #map1, #map], iterator_types = ["parallel", "parallel"]} ins(%18, %arg3 : tensor<4x16xf32>, tensor<16xf32>) outs(%1 : tensor<4x16xf32>) {
    ^bb0(%in: f32, %in_7: f32, %out: f32):
      %30 = arith.mulf %in, %in_7 : f32
      linalg.yield %30 : f32
    } -> tensor<4x16xf32>
    %20 = linalg.generic {indexing_maps = [#map, #map1, #map], iterator_types = ["parallel", "parallel"]} ins(%19, %arg4 : tensor<4x16xf32>, tensor<16xf32>) outs(%1 : tensor<4x16xf32>) {
    ^bb0(%in: f32, %in_7: f32, %out: f32):
      %30 = arith.addf %in, %in_7 : f32
      linalg.yield %30 : f32
    } -> tensor<4x16xf32>
    %21 = tensor.empty() : tensor<4xi64>
    %22 = linalg.fill ins(%c0_i64 : i64) outs(%21 : tensor<4xi64>) -> tensor<4xi64>
    %23 = tensor.empty() : tensor<4xf32>
    %24 = linalg.fill ins(%cst_2 : f32) outs(%23 : tensor<4xf32>) -> tensor<4xf32>
    %25:2 = linalg.generic {indexing_maps = [#map, #map3, #map3], iterator_types = ["parallel", "reduction"]} ins(%20 : tensor<4x16xf32>) outs(%24, %22 : tensor<4xf32>, tensor<4xi64>) {
    ^bb0(%in: f32, %out: f32, %out_7: i64):
      %30 = linalg.index 1 : index
      %31 = arith.index_cast %30 : index to i64
      %32 = arith.maximumf %in, %out : f32
      %33 = arith.cmpf ogt, %in, %out : f32
      %34 = arith.select %33, %31, %out_7 : i64
      linalg.yield %32, %34 : f32, i64
    } -> (tensor<4xf32>, tensor<4xi64>)
    %expanded = tensor.expand_shape %25#0 [[0, 1]] output_shape [4, 1] : tensor<4xf32> into tensor<4x1xf32>
    %26 = linalg.generic {indexing_maps = [#map, #map2, #map], iterator_types = ["parallel", "parallel"]} ins(%20, %expanded : tensor<4x16xf32>, tensor<4x1xf32>) outs(%1 : tensor<4x16xf32>) {
    ^bb0(%in: f32, %in_7: f32, %out: f32):
      %30 = arith.subf %in, %in_7 : f32
      linalg.yield %30 : f32
    } -> tensor<4x16xf32>
    %27 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]} ins(%26 : tensor<4x16xf32>) outs(%1 : tensor<4x16xf32>) {
    ^bb0(%in: f32, %out: f32):
      %30 = math.exp %in : f32
      linalg.yield %30 : f32
    } -> tensor<4x16xf32>
    %28 = linalg.generic {indexing_maps = [#map, #map2], iterator_types = ["parallel", "reduction"]} ins(%27 : tensor<4x16xf32>) outs(%7 : tensor<4x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %30 = arith.addf %in, %out : f32
      linalg.yield %30 : f32
    } -> tensor<4x1xf32>
    %29 = linalg.generic {indexing_maps = [#map, #map2, #map], iterator_types = ["parallel", "parallel"]} ins(%27, %28 : tensor<4x16xf32>, tensor<4x1xf32>) outs(%1 : tensor<4x16xf32>) {
    ^bb0(%in: f32, %in_7: f32, %out: f32):
      %30 = arith.divf %in, %in_7 : f32
      linalg.yield %30 : f32
    } -> tensor<4x16xf32>
    return %29 : tensor<4x16xf32>
  }
}
