// How a node of each operator is usually given, for fuzz targets and tests alone. One row per operator; those
// of one tensor or two that broadcast have none of their own.
#pragma once

#include <string>
#include <string_view>

#include "graph/ir/operator.h"

namespace celer::graph {

// Inputs are a letter for the type and the dimensions, with numbers behind '=': T the operator's type, and
// f i I b u s are f32 i64 i32 bool u8 i8; '?' may be left out, Q is a sequence of tensors. Attributes are
// name:kind=usual, of the kinds i f s I F S and t (a tensor); '!' is nearly always there.
struct FuzzForm {
  std::string_view op, inputs, attributes;
  int outputs = 1;
};

#define CELER_WINDOW \
  "strides:I=1,1 pads:I=0,0,0,0 dilations:I=1,1 auto_pad:s=NOTSET|SAME_UPPER|SAME_LOWER|VALID "
#define CELER_BYTES "y_signed:i=0 zero:i=3 low:i=0 high:i=255 factor:I=1073741824,0,3 x_zero:i=2 "

#define CELER_TREE                                                                                 \
  "nodes_treeids:I=0,0,0! nodes_nodeids:I=0,1,2! nodes_featureids:I=1,0,0! nodes_values:F=1,1,1! " \
  "nodes_modes:S=BRANCH_LEQ,LEAF,LEAF! nodes_truenodeids:I=1,0,0! nodes_falsenodeids:I=2,0,0! "    \
  "nodes_missing_value_tracks_true:I=0,0,0 base_values:F=1 post_transform:s=NONE|SOFTMAX|LOGISTIC|PROBIT "

inline constexpr FuzzForm kFuzzForms[] = {
    // one tensor
    {"Celu", "T2,3", "alpha:f=1"},
    {"Clip", "T2,3 ?T=-1 ?T=1", "min:f=-1 max:f=1"},
    {"Dropout", "T2,3 ?f=0 ?b=0", "", 2},
    {"Elu", "T2,3", "alpha:f=1"},
    {"Gelu", "T2,3", "approximate:s=none|tanh"},
    {"HardSigmoid", "T2,3", "alpha:f=1 beta:f=1"},
    {"IsInf", "T2,3", "detect_negative:i=1 detect_positive:i=1"},
    {"LeakyRelu", "T2,3", "alpha:f=1"},
    {"Selu", "T2,3", "alpha:f=1 gamma:f=1"},
    {"Shrink", "T2,3", "bias:f=1 lambd:f=1"},
    {"Swish", "T2,3", "alpha:f=1"},
    {"ThresholdedRelu", "T2,3", "alpha:f=1"},
    // several
    {"BitShift", "T2,3 T2,3", "direction:s=LEFT|RIGHT"},
    {"Max", "T2,3 T3 ?T2,1", ""},
    {"Mean", "T2,3 T3 ?T2,1", ""},
    {"Min", "T2,3 T3 ?T2,1", ""},
    {"Sum", "T2,3 T3 ?T2,1", ""},
    {"Mod", "T2,3 T2,3", "fmod:i=0"},
    {"PRelu", "T2,3,4 T3", ""},
    {"Where", "b2,3 f2,3 f3", ""},
    // types
    {"BitCast", "T2,3", "to:i=1!"},
    {"Cast", "T2,3", "to:i=1! saturate:i=1 round_mode:s=up|down|nearest"},
    // shapes
    {"ConstantOfShape", "i2=2,3", "value:t"},
    {"Expand", "T2,1 i3=4,2,3", ""},
    {"EyeLike", "T3,4", "k:i=1 dtype:i=1"},
    {"Flatten", "T2,3,4", "axis:i=1"},
    {"Range", "T=1 T=9 T=2", ""},
    {"Reshape", "T2,3 i2=3,-1", "allowzero:i=0 shape:I=3,2"},
    {"Shape", "T2,3,4", "start:i=0 end:i=2"},
    {"Squeeze", "T1,3,1 ?i1=0", "axes:I=0,2"},
    {"Unsqueeze", "T2,3 ?i2=0,3", "axes:I=0,3"},
    // moving
    {"CenterCropPad", "T4,5 i2=3,7", "axes:I=0,1"},
    {"Concat", "T2,3 T2,3 ?T2,3", "axis:i=1!"},
    {"DepthToSpace", "T1,8,2,3", "blocksize:i=2! mode:s=DCR|CRD"},
    {"Pad", "T2,3 ?i4=1,0,2,1 ?T=1 ?i2=0,1", "mode:s=constant|reflect|edge|wrap pads:I=1,0,2,1 value:f=1"},
    {"ReverseSequence", "T3,2,4 i2=2,3", "batch_axis:i=1 time_axis:i=0"},
    {"Slice", "T4,5 ?i2=0,1 ?i2=3,4 ?i2=0,1 ?i2=1,-1", "starts:I=0,1 ends:I=3,4 axes:I=0,1"},
    {"SpaceToDepth", "T1,2,4,6", "blocksize:i=2!"},
    {"Split", "T4,6 ?i2=2,4", "axis:i=1 split:I=2,4 num_outputs:i=2", 2},
    {"Tile", "T2,3 i2=2,1", ""},
    {"Transpose", "T2,3,4", "perm:I=2,0,1"},
    {"Trilu", "T3,4 ?i=1", "upper:i=1"},
    // reductions
    {"ArgMax", "T2,3,4", "axis:i=1 keepdims:i=1 select_last_index:i=0"},
    {"ArgMin", "T2,3,4", "axis:i=1 keepdims:i=1 select_last_index:i=0"},
    {"CumProd", "T2,3 i=1", "exclusive:i=0 reverse:i=0"},
    {"CumSum", "T2,3 i=1", "exclusive:i=0 reverse:i=0"},
    {"Hardmax", "T2,3,4", "axis:i=1"},
    {"LogSoftmax", "T2,3,4", "axis:i=1"},
    {"Softmax", "T2,3,4", "axis:i=1"},
    // products
    {"Det", "T2,3,3", ""},
    {"Gemm", "T3,4 T4,5 ?T5", "transA:i=0 transB:i=0 alpha:f=1 beta:f=1"},
    {"MatMul", "T2,3,4 T4,5", ""},
    {"MatMulInteger", "T3,4 u4,5 ?T= ?u5", ""},
    {"QLinearMatMul", "T3,4 f= T= u4,5 f5 u5 f= u=", ""},
    // ai.onnx.ml and com.microsoft
    {"ai.onnx.ml.ArrayFeatureExtractor", "T2,3 i2=0,2", ""},
    {"ai.onnx.ml.Binarizer", "T2,3", "threshold:f=1"},
    {"ai.onnx.ml.FeatureVectorizer", "T2,3 ?T2,1", "inputdimensions:I=3,1!"},
    {"ai.onnx.ml.Imputer", "T2,3",
     "imputed_value_floats:F=1,1,1! replaced_value_float:f=1 imputed_value_int64s:I=1 "
     "replaced_value_int64:i=1"},
    {"ai.onnx.ml.LinearClassifier", "T2,3",
     "coefficients:F=1,1,1,1,1,1! intercepts:F=1,1 classlabels_ints:I=0,1! multi_class:i=0 "
     "post_transform:s=NONE|SOFTMAX|LOGISTIC|SOFTMAX_ZERO|PROBIT",
     2},
    {"ai.onnx.ml.LinearRegressor", "T2,3",
     "coefficients:F=1,1,1! intercepts:F=1 targets:i=1 post_transform:s=NONE|SOFTMAX|LOGISTIC"},
    {"ai.onnx.ml.Normalizer", "T2,3", "norm:s=MAX|L1|L2"},
    {"ai.onnx.ml.OneHotEncoder", "T2,3", "cats_int64s:I=0,1,2! zeros:i=1"},
    {"ai.onnx.ml.SVMClassifier", "T2,3",
     "coefficients:F=1,1! support_vectors:F=1,1,1,1,1,1 vectors_per_class:I=1,1 rho:F=1 "
     "kernel_params:F=1,1,1 "
     "classlabels_ints:I=0,1! kernel_type:s=LINEAR|POLY|RBF|SIGMOID prob_a:F=1 prob_b:F=1",
     2},
    {"ai.onnx.ml.SVMRegressor", "T2,3",
     "coefficients:F=1,1! support_vectors:F=1,1,1,1,1,1 rho:F=1! kernel_params:F=1,1,1 n_supports:i=2 "
     "one_class:i=0 "
     "kernel_type:s=LINEAR|POLY|RBF|SIGMOID"},
    {"ai.onnx.ml.Scaler", "T2,3", "offset:F=1,1,1 scale:F=1,1,1"},
    {"ai.onnx.ml.TreeEnsembleClassifier", "T2,3",
     CELER_TREE "class_treeids:I=0,0! class_nodeids:I=1,2! class_ids:I=0,1! class_weights:F=1,1! "
                "classlabels_int64s:I=0,1!",
     2},
    {"ai.onnx.ml.TreeEnsembleRegressor", "T2,3",
     CELER_TREE
     "target_treeids:I=0,0! target_nodeids:I=1,2! target_ids:I=0,0! target_weights:F=1,1! n_targets:i=1 "
     "aggregate_function:s=SUM|AVERAGE|MIN|MAX"},
    {"com.microsoft.GroupQueryAttention", "T1,2,8 ?T1,2,4 ?T1,2,4 ?T1,1,3,4 ?T1,1,3,4 I1=4 I=5 ?T8,2 ?T8,2",
     "num_heads:i=2! kv_num_heads:i=1! do_rotary:i=0 rotary_interleaved:i=0 scale:f=1 softcap:f=1 "
     "local_window_size:i=-1",
     3},
    {"com.microsoft.MatMulNBits", "T2,32 u3,2,8 f6 ?u3 ?I32 ?f3",
     "K:i=32! N:i=3! bits:i=4! block_size:i=16! accuracy_level:i=0"},
    // convolutions
    {"Col2Im", "T1,8,6 i2=3,4 i2=2,2", "strides:I=1,1 pads:I=0,0,0,0 dilations:I=1,1"},
    {"Conv", "T2,4,5,5 T6,2,3,3 ?T6", CELER_WINDOW "group:i=2! kernel_shape:I=3,3"},
    {"ConvInteger", "T1,4,5,5 s6,2,3,3 ?T= ?s6", CELER_WINDOW "group:i=2!"},
    {"ConvTranspose", "T2,4,5,5 T4,3,3,3 ?T6",
     CELER_WINDOW "group:i=2! output_padding:I=0,0 output_shape:I=7,7 kernel_shape:I=3,3"},
    {"DeformConv", "T1,4,5,5 T6,2,3,3 T1,36,3,3 ?T6 ?T1,18,3,3", CELER_WINDOW "group:i=2! offset_group:i=2!"},
    {"QLinearConv", "T1,4,5,5 f= T= s6,2,3,3 f6 s6 f= u= ?I6", CELER_WINDOW "group:i=2!"},
    {"celer.Attention", "T2,3,4 T2,4,5 T2,5,6 ?T3,5", "scale:f=1"},
    {"celer.Conv", "T2,4,5,5 f6,2,3,3 ?f6 ?T2,6,3,3",
     CELER_WINDOW "group:i=2! activation:s=clip|silu|gelu a:f=1 b:f=1"},
    {"celer.MatMul", "T3,4 f4,5 ?f5 ?T3,5", "transB:i=0 activation:s=clip|tanh a:f=1 b:f=1"},
    {"celer.DynamicMatMul", "T3,4 s5,4 f5 ?f5 ?f3,5", "activation:s=clip x_scale:f=1 " CELER_BYTES},
    {"celer.IntegerAdd", "T2,3 u2,3",
     CELER_BYTES "a_factor:i=16384! b_factor:i=9000! start:i=100! shift:i=15!"},
    {"celer.IntegerAveragePool", "T1,4,4,3",
     CELER_WINDOW CELER_BYTES "global:i=0 keepdims:i=1 kernel_shape:I=2,2!"},
    {"celer.IntegerConv",
     "T1,5,5,4 s6,2,3,3 I3,6=1073741824,1073741824,1073741824,1073741824,1073741824,"
     "1073741824,0,0,0,0,0,0,3,3,3,3,3,3 ?I6",
     CELER_WINDOW CELER_BYTES "group:i=2!"},
    {"celer.IntegerMatMul", "T3,4 s2,4 I3,2=1073741824,1073741824,0,0,3,3 ?I2", CELER_BYTES},
    {"celer.IntegerMaxPool", "T1,4,4,3", CELER_WINDOW "kernel_shape:I=2,2! ceil_mode:i=0 global:i=0"},
    {"celer.IntegerMul", "T2,3 u2,3", CELER_BYTES "a_zero:i=1 b_zero:i=2"},
    {"celer.Table", "T2,3 u256", "y_signed:i=0"},
    // pools
    {"AveragePool", "T1,2,4,5", CELER_WINDOW "kernel_shape:I=2,2! ceil_mode:i=0 count_include_pad:i=0"},
    {"GlobalLpPool", "T1,2,4,5", "p:i=2"},
    {"GlobalAveragePool", "T1,2,4,5", ""},
    {"GlobalMaxPool", "T1,2,4,5", ""},
    {"LpPool", "T1,2,4,5", CELER_WINDOW "kernel_shape:I=2,2! ceil_mode:i=0 p:i=2"},
    {"MaxPool", "T1,2,4,5", CELER_WINDOW "kernel_shape:I=2,2! ceil_mode:i=0 storage_order:i=0", 2},
    {"MaxUnpool", "T1,1,2,2 i1,1,2,2=0,3,8,15 ?i4=1,1,4,4",
     "kernel_shape:I=2,2! strides:I=2,2 pads:I=0,0,0,0"},
    // choosing
    {"Compress", "T3,4 b3", "axis:i=0"},
    {"Gather", "T3,4 i2,2=0,1,2,-1", "axis:i=0"},
    {"GatherElements", "T3,4 i3,2=0,1,2,0,1,2", "axis:i=1"},
    {"GatherND", "T2,3,4 i2,2=0,1,1,2", "batch_dims:i=0"},
    {"OneHot", "T2,3 i=5 f2", "axis:i=1"},
    {"Scatter", "T3,4 i2,2=0,1,1,2 T2,2", "axis:i=0"},
    {"ScatterElements", "T3,4 i2,2=0,1,1,2 T2,2", "axis:i=0 reduction:s=none|add|mul|max|min"},
    {"ScatterND", "T2,3,4 i2,2=0,1,1,2 T2,4", "reduction:s=none|add|mul|max|min"},
    {"TensorScatter", "T2,6,4 T2,3,4 ?i2=1,2", "axis:i=1 mode:s=linear|circular"},
    {"TopK", "T3,4 ?i1=2", "axis:i=1 k:i=2 largest:i=1 sorted:i=1", 2},
    {"Unique", "T3,4", "axis:i=0 sorted:i=1", 4},
    // norms
    {"BatchNormalization", "T2,3,4 f3 f3 f3 f3", "epsilon:f=1 momentum:f=1 training_mode:i=0", 3},
    {"GroupNormalization", "T2,6,4 f6 f6", "num_groups:i=3! epsilon:f=1"},
    {"InstanceNormalization", "T2,6,4 f6 f6", "epsilon:f=1 num_groups:i=3"},
    {"LRN", "T2,6,4", "size:i=3! alpha:f=1 beta:f=1 bias:f=1"},
    {"LayerNormalization", "T2,3,4 T4 ?T4", "axis:i=-1 epsilon:f=1", 3},
    {"LpNormalization", "T2,3", "axis:i=1 p:i=2"},
    {"MeanVarianceNormalization", "T2,3,4,5", "axes:I=0,2,3"},
    {"RMSNormalization", "T2,3,4 T4", "axis:i=-1 epsilon:f=1"},
    // quantization
    {"DequantizeLinear", "T4,6 f6 ?T6", "axis:i=1 block_size:i=2 output_dtype:i=1"},
    {"DynamicQuantizeLinear", "T3,4", "", 3},
    {"QuantizeLinear", "T4,6 f6 ?u6", "axis:i=1 block_size:i=2 output_dtype:i=2 saturate:i=1"},
    // sequences
    {"ConcatFromSequence", "Q3,4", "axis:i=0! new_axis:i=0"},
    {"Optional", "T2,3", ""},
    {"OptionalGetElement", "T2,3", ""},
    {"OptionalHasElement", "?T2,3", ""},
    {"SequenceAt", "Q3,4 i=1", ""},
    {"SequenceConstruct", "T2,3 ?T2,3", ""},
    {"SequenceEmpty", "", "dtype:i=1"},
    {"SequenceErase", "Q3,4 ?i=1", ""},
    {"SequenceInsert", "Q3,4 f3,4 ?i=1", ""},
    {"SequenceLength", "Q3,4", ""},
    {"SplitToSequence", "T4,6 ?i=2", "axis:i=1 keepdims:i=1"},
    // images
    {"AffineGrid", "T2,2,3 i4=2,3,4,5", "align_corners:i=0"},
    {"GridSample", "T1,2,4,5 f1,3,3,2",
     "align_corners:i=0 mode:s=linear|nearest|cubic padding_mode:s=zeros|border|reflection"},
    {"NonMaxSuppression", "T1,5,4 f1,2,5 ?i=3 ?f= ?f=", "center_point_box:i=0"},
    {"Resize", "T1,2,4,5 ?f8 ?f4=1,1,2,0.7 ?i4=1,2,3,7",
     "mode:s=nearest|linear|cubic nearest_mode:s=floor|ceil|round_prefer_ceil antialias:i=0 axes:I=2,3 "
     "exclude_outside:i=0 cubic_coeff_a:f=1 extrapolation_value:f=1 "
     "coordinate_transformation_mode:s=half_pixel|align_corners|asymmetric|tf_crop_and_resize|half_pixel_"
     "symmetric "
     "keep_aspect_ratio_policy:s=stretch|not_larger|not_smaller"},
    {"RoiAlign", "T2,3,4,5 T3,4 i3=0,1,1",
     "output_height:i=2 output_width:i=2 sampling_ratio:i=0 spatial_scale:f=1 mode:s=avg|max "
     "coordinate_transformation_mode:s=half_pixel|output_half_pixel"},
    {"Upsample", "T1,2,4,5 f4=1,1,2,1.5", "mode:s=nearest|linear scales:F=1,1,2,2"},
    // recurrent
    {"GRU", "T3,2,4 T1,15,4 T1,15,5 ?T1,30 ?I2=2,3 ?T1,2,5",
     "direction:s=forward|reverse hidden_size:i=5 layout:i=0 linear_before_reset:i=0 clip:f=1 "
     "activations:S=tanh,relu",
     2},
    {"LSTM", "T3,2,4 T1,20,4 T1,20,5 ?T1,40 ?I2=2,3 ?T1,2,5 ?T1,2,5 ?T1,15",
     "direction:s=forward|reverse hidden_size:i=5 layout:i=0 input_forget:i=0 clip:f=1", 3},
    {"RNN", "T3,2,4 T1,5,4 T1,5,5 ?T1,10 ?I2=2,3 ?T1,2,5",
     "direction:s=forward|reverse hidden_size:i=5 layout:i=0 clip:f=1 activation_alpha:F=1", 2},
    {"Attention", "T1,3,8 T1,4,8 T1,4,8 ?T3,4 ?T1,2,5,4 ?T1,2,5,4 ?i1",
     "q_num_heads:i=2! kv_num_heads:i=2! scale:f=1 softcap:f=1 is_causal:i=0 qk_matmul_output_mode:i=0", 4},
    {"RotaryEmbedding", "T1,3,8 T5,2 T5,2 ?i1,3=0,1,2",
     "num_heads:i=2! rotary_embedding_dim:i=0 interleaved:i=0"},
    // losses
    {"NegativeLogLikelihoodLoss", "T3,5 i3=0,1,4 ?T5", "reduction:s=mean|sum|none ignore_index:i=1"},
    {"SoftmaxCrossEntropyLoss", "T3,5 i3=0,1,4 ?T5", "reduction:s=mean|sum|none ignore_index:i=1", 2},
    // signals
    {"BlackmanWindow", "i=5", "periodic:i=1 output_datatype:i=1"},
    {"HammingWindow", "i=5", "periodic:i=1 output_datatype:i=1"},
    {"HannWindow", "i=5", "periodic:i=1 output_datatype:i=1"},
    {"DFT", "T1,5,1 ?i=6 ?i=1", "axis:i=1 inverse:i=0 onesided:i=0"},
    {"MelWeightMatrix", "i=4 i=16 i=8000 f=0 f=4000", "output_datatype:i=1"},
    {"STFT", "T1,12,1 i=3 ?T4 ?i=4", "onesided:i=1"},
    {"Einsum", "T2,3 T3,4", "equation:s=ij,jk->ik|ij,jk|...j,jk->...k|ij,kl->|ii,jk->jk|\x01\x02,ab"},
    // random
    {"Bernoulli", "T2,3", "dtype:i=1 seed:f=1"},
    {"RandomNormal", "", "dtype:i=1 mean:f=1 scale:f=1 seed:f=1 shape:I=2,3"},
    {"RandomNormalLike", "T2,3", "dtype:i=1 mean:f=1 scale:f=1 seed:f=1"},
    {"RandomUniform", "", "dtype:i=1 low:f=0 high:f=1 seed:f=1 shape:I=2,3"},
    {"RandomUniformLike", "T2,3", "dtype:i=1 low:f=0 high:f=1 seed:f=1"},
};

#undef CELER_WINDOW
#undef CELER_BYTES
#undef CELER_TREE

inline constexpr FuzzForm kFuzzReduction = {"", "T2,3,4 ?i1=1",
                                            "axes:I=1 keepdims:i=1 noop_with_empty_axes:i=0"};
inline constexpr FuzzForm kFuzzOneInput = {"", "T2,3", ""}, kFuzzTwoInputs = {"", "T2,3 T3", "axis:i=1"};

inline const FuzzForm* FuzzFormOf(const Operator& op) {
  const std::string name = (op.domain.empty() ? "" : std::string(op.domain) + ".") + std::string(op.name);
  for (const FuzzForm& form : kFuzzForms)
    if (form.op == name) return &form;
  if (op.name.starts_with("Reduce")) return &kFuzzReduction;
  return op.inputs.least >= 2 ? &kFuzzTwoInputs : &kFuzzOneInput;
}

}  // namespace celer::graph
