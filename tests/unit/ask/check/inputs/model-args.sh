MODEL_ARGS=(
   --num-layers 36
   --hidden-size 2560
   --tp-comm-overlap
)
