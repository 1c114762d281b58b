"""A checkpoint that torch 2.3.1 wrote: one tensor, and an optimizer's param_groups with one number."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

# The files of torch.distributed.checkpoint.save({"weight": ones(2), "optimizer": {"param_groups": [{"lr": 1.0}]}}) with
# torch 2.3.1 from PyPI on one rank, compressed.
FILES = {
    ".metadata": (
        "c-noEO>Yx15QbN6J}5L2Qp*qEP*E;XMeax?v?!#TqPACLyt}ip)s4N_V<44~;E+Ql-!M1+8-E4cn{<)**pof;%scPQ`b+2g&#feW"
        "_5h{I*|6Xm70(PpG0Yj{*R|vVhYLVjP^8Y@OE<@F?&(+e*&W(FjTC_tJV$Z|hD7fp@Hs=r68q>1gqG^kccF9mQ{#TEWDN>A=zu?L"
        "@HcHRl83e%Z93a8D@k$m%*X9sV_k#dwBk1uxfISmAag)c(WNvPsKJ`@;}uZ2mAi1azSBNQPf~Jvevuwuk(1f@{N-f!%Jb7C66iA9"
        "(fkJ7UF*(exO!r16;*66XGUCW_cl1+ABW37=j_X})PR1-$Du>4?*{!CSu2{1n#}IV8u`MfRMdU3M9_cLHFmeIs1TsYX7#Mk`YXpq"
        "Y_tk#-ITTI#11wZ6H&mY*5G#e-Y@UB-nPplG4qz5{P&TRyaK({2n%O-$=d2fl(JPHD5(7Z`2eJ*$O1-=$Wau`Yrn~6JAV1LSAm#&"
        "Bz?DSGWNWwXUFZE8c!28ZMW#5(={|<ui4bsv9t6?$7IH2!(aZ7CaM"
    ),
    "__0_0.distcp": (
        "c-qxey>HV%6hAwTlNy?Sh=rw$1ObUZ;;*7oWFa$nAPoXVm5}8+R<JO2&b~yV5>f{;urYOHU}ZyW{1pr!b|hv-#87b;x50L3le8?H"
        "Wj)>9`@Q?!d-r}#tH1zIE`y1&3|4^?xljCoSMNB;sr8-)rcnXgnXym5fS`R5`}ds4d1iN`u-}Uz^%&xfLYu}LK?Iq5n?I7Mu@l#t"
        "R;kP!URiD6Ir*C>a##V2V-7pdkrzfCFEWjVKO_Plp}->%ha2B6vlzpk8gU71j3W-bDE7l$)6jF5nqx>DIs4O_?n81_`qZ=6fH*$8"
        "Mp9ajy~uY0f6qafhwXPvqc$fMUXhfBtg4c#H<Si1@UkHBqalcrAnKaPi;6BPgyo*}?qe16sE$}tgzT7Sx*p3D%=7Ock51=)C4+pK"
        "LXRt$ho{rGl!1Rq!H>$72d8hfmI1dYFeTqji)C*dSEq1ujAU|_r4sw|$YNZH*h4y*Q=_#an_!rcf8yIbcYnDk#9lSKkNhC!?8w{c"
        "`$5M>-fkR5_CVwys8-vAPK-UBt_P_E!kIznpa;n!2kAB;#N(zcVC(k!kg;e4i(3}3=pke+Y6wfOTsI5?&n5YZx%;G8UgxgwA`X_X"
        "wcrARTnk<pbuhSe=feSxbTFlZum7!sug?0+=k4zbxSh#roi~m3v$yv)0Q;NdCk$S1v7gD2<tYktYf@oU@W1MdtSXwUX|gJ5vaTzl"
        "iWP;ZOGB3xNfmWTQ)EFG2+Oy>-Y=e{FX`9vFZJd7Ec%izTqOg4M1kCMnO&Q{Qd6}lospb2(P!1BV$K@J+C*oyX`PwWrXv1`f8zTa"
        "t@@s-"
    ),
}


def unpack(folder: Path) -> None:
    """Write the files into a folder."""
    for name, packed in FILES.items():
        (folder / name).write_bytes(zlib.decompress(base64.b85decode(packed)))
